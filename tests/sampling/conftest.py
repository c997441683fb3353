"""Lets the tests of this folder import the reference implementation beside them, and the scheduler's fakes."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "scheduler")]

import sys
from pathlib import Path

# The fakes beside this file are imported by name; pytest's importlib mode puts no folder on the path.
sys.path.insert(0, str(Path(__file__).parent))

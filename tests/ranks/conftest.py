import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]

from harness import RankProcesses  # noqa: E402  (found through the path just set)


@pytest.fixture(scope="session")
def rank_processes() -> Iterator[RankProcesses]:
    """Processes that one test after the other uses; a test that kills some makes its own."""
    with RankProcesses() as processes:
        yield processes

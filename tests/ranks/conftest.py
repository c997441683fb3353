"""Processes and checkpoints that tests of several ranks share."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "model_runner"), str(HERE.parent / "scheduler")]

from checkpoints import write_checkpoint  # noqa: E402  (found through the path just set)
from harness import RankProcesses  # noqa: E402


@pytest.fixture(scope="session")
def rank_processes() -> Iterator[RankProcesses]:
    """Processes that one test after the other uses; a test that kills some makes its own."""
    with RankProcesses() as processes:
        yield processes


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``make_checkpoint("llama", attention_bias=True)``: a folder with random weights."""

    def make(model_type: str, **overrides: Any) -> Path:
        folder = tmp_path_factory.mktemp(model_type)
        write_checkpoint(folder, model_type, **overrides)
        return folder

    return make

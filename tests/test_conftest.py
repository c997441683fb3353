"""What every test relies on: signals that reach its processes, and the same examples and seeds on every run."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

IGNORING_CALLER = """
import runpy, signal, subprocess, sys
signals = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
for number in signals:
    signal.signal(number, signal.SIG_IGN)
runpy.run_path(sys.argv[1])["pytest_configure"]()
for number in signals:
    signal.raise_signal(number)
child = "import signal, sys; sys.exit(sum(signal.getsignal(int(n)) is signal.SIG_IGN for n in sys.argv[1:]))"
sys.exit(subprocess.call([sys.executable, "-c", child, *(str(int(number)) for number in signals)]))
"""


def test_signals_reach_processes_of_tests_though_the_caller_ignores_them() -> None:
    conftest = str(Path(__file__).with_name("conftest.py"))
    assert subprocess.run([sys.executable, "-c", IGNORING_CALLER, conftest], timeout=60).returncode == 0


@pytest.mark.parametrize("run", [1, 2])
def test_each_test_begins_with_the_same_seeds(run: int) -> None:
    drawn = random.random(), np.random.random(), torch.rand(1).item()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    assert drawn == (random.random(), np.random.random(), torch.rand(1).item())


@pytest.mark.skipif(hypothesis.settings().derandomize is False, reason="the profile `random` is chosen")
def test_examples_are_the_same_on_every_run() -> None:
    seen: list[list[int]] = []

    @hypothesis.given(st.integers())
    def record(value: int) -> None:
        seen[-1].append(value)

    for _ in range(2):
        seen.append([])
        record()
    assert seen[0] == seen[1]

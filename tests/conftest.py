"""Fixtures that every test folder may use."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

# A folder below, since this one has folders that are named as the packages under test.
sys.path.insert(0, str(Path(__file__).parent / "certificates"))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: test machines have few cores

# `ci`, the default, draws the same examples on every run, so that luck decides nothing; `random` (make test-random)
# draws new ones. A busy machine fails no property: no deadline. One that failed stays as an @example.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("random", derandomize=False, deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure() -> None:
    """Let the processes that tests start receive signals, though the caller of the tests ignores them.

    Processes inherit what is ignored (``nohup`` and many runners ignore SIGINT and SIGHUP), but no handler. This
    process goes on ignoring them, by a handler that does nothing.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


_SLOW_FOLDERS = ("end_to_end", "launch", "ranks", "reasoning", "tools", "model_runner")
"""Those whose files take longest, in the order in which they begin: one that began last would keep one worker alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slow folders first; the workers of ``-n 2`` take files in this order (``--no-loadscope-reorder``)."""
    places = {folder: place for place, folder in enumerate(_SLOW_FOLDERS)}
    items.sort(key=lambda item: places.get(item.path.parent.name, len(places)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Begin each test, and the fixtures it is the first to use, with the same seeds."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The embedded default model: ``SCANSION_TEST_GGUF``, or fetched once into the user's cache folder."""
    named = os.environ.get("SCANSION_TEST_GGUF")
    if named:
        path = Path(named)
        if not path.is_file():
            pytest.fail(f"SCANSION_TEST_GGUF names {path}, which does not exist")
        return path
    from server.models.embedded import fetch_embedded
    from server.models.progress import SilentProgress

    return fetch_embedded(SilentProgress())


@pytest.fixture
def free_port() -> Callable[[], int]:
    """A function that returns a TCP port nobody listens on."""

    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port

    return find

"""Fixtures that every test folder may use."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# A folder below, since this one has folders that are named as the packages under test.
sys.path.insert(0, str(Path(__file__).parent / "certificates"))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: test machines have few cores


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

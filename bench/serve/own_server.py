"""A server of this installation, started for one benchmark and stopped after it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
import types
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_STOP_SECONDS = 10.0
_LOG_TAIL_CHARACTERS = 3000


class ServerStartError(RuntimeError):
    """The server did not become ready; the message holds the end of its log."""


@dataclass(frozen=True)
class OwnServer:
    base_url: str
    ready_seconds: float
    process: subprocess.Popen[bytes]

    def resident_mib(self) -> float:
        """Memory of the server and all its processes; on Linux pages they share count once (PSS)."""
        total = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.process.pid)
            for process in (parent, *parent.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += process.memory_full_info().pss if psutil.LINUX else process.memory_info().rss
        return total / 2**20


def serve_command() -> list[str]:
    """The installed ``scansion serve``.

    The script is named by its path, not ``python -m``: that would import from the working directory first.
    """
    script = Path(sysconfig.get_path("scripts")) / "scansion"
    if not script.exists():
        raise ServerStartError(f"{script} does not exist: install scansion, or name a running server with --base-url")
    return [str(script), "serve"]


@contextlib.contextmanager
def own_server(
    arguments: Sequence[str], *, start_seconds: float, command: Sequence[str] | None = None
) -> Iterator[OwnServer]:
    """Start a server on a free loopback port, wait until it is healthy, and stop it at the end.

    Raises
    ------
    ServerStartError
        When it exits, or is not healthy within ``start_seconds``.
    """
    port = _free_port()
    whole = [*(command or serve_command()), "--host", "127.0.0.1", "--port", str(port), *arguments]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="scansion-bench-"))
        log_path = Path(folder) / "server.log"
        log = stack.enter_context(log_path.open("wb"))
        stack.enter_context(_unwound_by_signals())
        began = time.perf_counter()
        process = subprocess.Popen(whole, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        stack.callback(_stop, process)
        _wait_until_healthy(process, f"http://127.0.0.1:{port}/health", began + start_seconds, log_path)
        yield OwnServer(f"http://127.0.0.1:{port}/v1", time.perf_counter() - began, process)


@contextlib.contextmanager
def _unwound_by_signals() -> Iterator[None]:
    """Let a signal that ends this process end it like an exception does: past the code that stops the server."""

    def leave(number: int, frame: types.FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, leave) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, deadline: float, log_path: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        if process.poll() is not None:
            raise ServerStartError(f"the server exited with {process.returncode}:\n{_tail(log_path)}")
        try:
            with opener.open(url, timeout=5) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            # Not listening yet, or 503 while it loads.
            pass
        if time.perf_counter() > deadline:
            raise ServerStartError(f"the server was not ready in time:\n{_tail(log_path)}")
        time.sleep(0.2)


def _tail(log_path: Path) -> str:
    return log_path.read_text("utf-8", "replace")[-_LOG_TAIL_CHARACTERS:]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask it to drain, then to stop, then kill what is left of its process group."""
    for _ in range(2):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

"""The real server with the real model, started as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

MODEL = "SmolLM2-135M-Instruct"
START_SECONDS = 180.0  # a loaded test machine; alone it is a few seconds
DECOYS = ("server", "scheduler", "model_runner", "constrained", "sampling", "bench", "tests")


class RunningServer:
    """A ``scansion serve`` process and ways to talk to it."""

    def __init__(self, folder: Path, port: int, flags: list[str]) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log_path = folder / "log"
        command = [str(Path(sysconfig.get_path("scripts")) / "scansion"), "serve", "--port", str(port), *flags]
        # Files of a debugger, a proxy or other settings outside must not change what is tested.
        outside = ("SCANSION_", "PYTHONPATH", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(outside)}
        if "SCANSION_CACHE_DIR" in os.environ:
            environment["SCANSION_CACHE_DIR"] = os.environ["SCANSION_CACHE_DIR"]
        environment["TMPDIR"] = environment["XDG_RUNTIME_DIR"] = str(short_folder(folder))
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=decoy_folder(folder), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8")

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120, **options)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=30, trust_env=False)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, timeout=60, trust_env=False, **options)

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self.get("/server_info").json()["stats"]
        return stats

    def health(self) -> int:
        """Status of ``/health``; 0 while nobody listens."""
        try:
            return self.get("/health").status_code
        except httpx.TransportError:
            return 0

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"the server exited with {self.process.returncode}:\n{self.log()}"
            assert time.monotonic() < deadline, f"{what} took too long:\n{self.log()}"
            time.sleep(0.05)

    def wait_ready(self) -> None:
        self.wait_until(lambda: self.health() == 200, "becoming ready")

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, holding: str) -> psutil.Process:
        """The direct child that has a file of this name open or mapped: ``libtorch`` is only in the scheduler."""
        for child in psutil.Process(self.process.pid).children():
            if any(holding in mapping.path for mapping in child.memory_maps()):
                return child
        raise LookupError(holding)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


def decoy_folder(folder: Path) -> Path:
    """A working directory full of packages with our names, which must not be imported."""
    decoys = folder / "decoys"
    for name in DECOYS:
        (decoys / name).mkdir(parents=True)
        (decoys / name / "__init__.py").write_text(f"raise RuntimeError('the decoy {name} was imported')\n")
    return decoys


def short_folder(folder: Path) -> Path:
    """Sockets have short paths; pytest's folders may be too deep for them, and then /tmp is used."""
    path = folder / "r"
    path.mkdir()
    return path


@pytest.fixture(scope="session")
def start_server(
    tmp_path_factory: pytest.TempPathFactory, smollm2_gguf: Path
) -> Iterator[Callable[..., RunningServer]]:
    started: list[RunningServer] = []

    def start(*flags: str, model: str | None = None) -> RunningServer:
        import socket

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        model_flags = ["--model", model or str(smollm2_gguf)]
        if model is None:
            model_flags += ["--served-model-name", MODEL]
        server = RunningServer(tmp_path_factory.mktemp("server"), port, [*model_flags, "--num-threads", "1", *flags])
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def server(start_server: Callable[..., RunningServer]) -> RunningServer:
    """One server for all tests that leave it as it was; in float32, so that batching changes no answer."""
    running = start_server("--dtype", "float32", "--kv-cache-tokens", "16384")
    running.wait_ready()
    return running


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with server.client() as client:
        yield client

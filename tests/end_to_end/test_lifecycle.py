"""The real server's processes die, are restarted, drain and leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

MODEL = "SmolLM2-135M-Instruct"


def request_body(max_tokens: int, **options: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": max_tokens, "ignore_eos": True}
    return body | options


@pytest.fixture(scope="module")
def own_server(start_server: Callable[..., Any]) -> Any:
    """A server that these tests hurt; they run in the order of the file, and the last ones end it."""
    running = start_server("--http-workers", "2", "--kv-cache-tokens", "8192", "--scheduler-timeout", "5")
    saw_loading = []
    running.wait_until(lambda: saw_loading.append(running.health()) or saw_loading[-1] == 200, "becoming ready")
    running.saw_loading = saw_loading
    return running


class Streaming:
    """A client that reads a long stream in a thread."""

    def __init__(self, server: Any, max_tokens: int) -> None:
        self.events: list[str] = []
        self.error: Exception | None = None
        self.has_begun = threading.Event()
        self._url = server.url + "/v1/completions"
        self._body = request_body(max_tokens, stream=True)
        self.thread = threading.Thread(target=self._read)
        self.thread.start()
        assert self.has_begun.wait(60)

    def _read(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=120, trust_env=False) as response:
                for line in response.iter_lines():
                    if line:
                        self.events.append(line)
                        self.has_begun.set()
        except httpx.HTTPError as error:
            self.error = error
            self.has_begun.set()


@pytest.fixture
def streaming(own_server: Any) -> Iterator[Callable[[int], Streaming]]:
    started: list[Streaming] = []

    def start(max_tokens: int) -> Streaming:
        started.append(Streaming(own_server, max_tokens))
        return started[-1]

    yield start
    for stream in started:
        stream.thread.join(60)


def test_health_says_loading_before_it_says_ready(own_server: Any) -> None:
    assert 503 in own_server.saw_loading
    assert "Scansion is ready" in own_server.log()
    assert f"curl {own_server.url}/v1/chat/completions" in own_server.log()


def test_a_taken_port_is_told_at_once(own_server: Any, start_server: Callable[..., Any]) -> None:
    began = time.monotonic()
    second = start_server("--port", str(own_server.port))
    assert second.process.wait(30) == 1
    assert time.monotonic() - began < 20
    assert f"port {own_server.port} of 127.0.0.1 is in use" in second.log()
    assert "Traceback" not in second.log()


def test_a_killed_scheduler_is_an_error_for_who_waits_and_then_restarted(
    own_server: Any, streaming: Callable[[int], Streaming]
) -> None:
    waiting = streaming(4000)
    own_server.child("libtorch").kill()
    waiting.thread.join(10)
    assert not waiting.thread.is_alive(), "the waiting client was not told"
    error = json.loads(waiting.events[-1].removeprefix("data: "))["error"]
    assert error["message"]
    assert own_server.health() == 503
    refused = own_server.post("/v1/completions", json=request_body(4))
    assert refused.status_code == 503
    assert set(refused.json()["error"]) == {"message", "type", "param", "code"}
    own_server.wait_ready()
    assert "was killed by SIGKILL" in own_server.log()
    assert own_server.post("/v1/completions", json=request_body(4)).json()["usage"]["completion_tokens"] == 4


def test_a_scheduler_that_hangs_is_an_error_for_who_waits_and_welcome_back(
    own_server: Any, streaming: Callable[[int], Streaming]
) -> None:
    waiting = streaming(4000)
    scheduler = own_server.child("libtorch")
    scheduler.suspend()
    try:
        waiting.thread.join(15)
        assert not waiting.thread.is_alive(), "the waiting client was not told"
        error = json.loads(waiting.events[-1].removeprefix("data: "))["error"]
        assert "did not answer" in error["message"]
        own_server.wait_until(lambda: own_server.health() == 503, "noticing that it hangs", seconds=10)
    finally:
        scheduler.resume()
    own_server.wait_ready()
    assert own_server.child("libtorch").pid == scheduler.pid
    assert own_server.post("/v1/completions", json=request_body(4)).json()["usage"]["completion_tokens"] == 4


def test_a_killed_http_process_is_restarted_while_the_other_serves(own_server: Any) -> None:
    before = {child.pid for child in psutil.Process(own_server.process.pid).children()}
    scheduler = own_server.child("libtorch").pid
    victim = next(pid for pid in sorted(before) if pid != scheduler and is_http(pid))
    os.kill(victim, signal.SIGKILL)
    own_server.wait_until(lambda: "is ready again" in own_server.log().split("http-")[-1], "restarting", seconds=60)
    for _ in range(8):  # whichever process accepts
        assert own_server.post("/v1/completions", json=request_body(2)).status_code == 200
    assert own_server.child("libtorch").pid == scheduler


def is_http(pid: int) -> bool:
    return any("httptools" in mapping.path for mapping in psutil.Process(pid).memory_maps())


def test_sigterm_lets_running_requests_end_and_leaves_nothing(
    own_server: Any, streaming: Callable[[int], Streaming]
) -> None:
    running = streaming(60)
    children = own_server.children()
    own_server.process.send_signal(signal.SIGTERM)
    assert own_server.process.wait(60) == 0
    running.thread.join(10)
    assert running.events[-1] == "data: [DONE]"
    assert psutil.wait_procs(children, timeout=5)[1] == []
    end = own_server.log().split("SIGTERM:")[-1]
    assert "stopped" in end
    assert not re.search("warning|error|Traceback", end), end
    assert list((own_server.log_path.parent / "r").iterdir()) == []


def test_nothing_outlives_a_killed_parent(start_server: Callable[..., Any]) -> None:
    server = start_server("--kv-cache-tokens", "8192")
    server.wait_ready()
    assert server.post("/v1/completions", json=request_body(2)).status_code == 200
    children = server.children()
    assert len(children) >= 2
    server.process.kill()
    alive = psutil.wait_procs(children, timeout=10)[1]
    assert alive == [], [process.cmdline() for process in alive]


def test_a_model_that_cannot_be_served_is_one_message(start_server: Callable[..., Any], tmp_path: Path) -> None:
    config = {"architectures": ["MambaForCausalLM"], "model_type": "mamba", "hidden_size": 8, "vocab_size": 300}
    config |= {"num_hidden_layers": 1, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    server = start_server("--load-format", "dummy", model=str(tmp_path))
    assert server.process.wait(120) == 1
    last = server.log().splitlines()[-1]
    assert last.startswith("scansion: ")
    assert "amba" in last
    assert "Traceback" not in server.log()
    assert "restarting" not in server.log()


def test_an_unknown_grammar_engine_is_one_message(start_server: Callable[..., Any]) -> None:
    server = start_server("--grammar-backend", "nonsense")
    assert server.process.wait(120) == 2
    assert server.log().startswith("scansion serve: ")
    assert "nonsense" in server.log()
    assert "llguidance" in server.log()
    assert "Traceback" not in server.log()
    assert "restarting" not in server.log()

"""A real server of several ranks and copies: its processes are killed and stopped, and clients hear of it at once.

The model is small and random: what it says does not matter here, and two cores are enough for five processes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from bench.parallel.random_model import write_random_model

pytestmark = pytest.mark.timeout(300)  # several servers start, each with processes that import torch

TEXT = "/v1/completions"
TOLD_SECONDS = 5.0
SILENCE_SECONDS = 8.0  # a busy test machine can hold a rank up for a few
FLAGS = ("--load-format", "dummy", "--dtype", "float32", "--kv-cache-tokens", "16384", "--grammar-backend", "xgrammar")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything but weights; its heads divide by two."""
    return write_random_model(tmp_path_factory.mktemp("random-model"))


@pytest.fixture(scope="module")
def parallel(start_server: Callable[..., Any], model: Path) -> Any:
    """Two copies of two ranks each; the tests hurt it, and each waits until it is whole again."""
    running = start_server(
        *FLAGS, "--tp", "2", "--dp", "2", "--scheduler-timeout", str(SILENCE_SECONDS), model=str(model)
    )
    wait_whole(running)
    return running


def wait_whole(server: Any) -> None:
    server.wait_until(lambda: groups_up(server) == [1, 1], "all groups being up")


def groups_up(server: Any) -> list[int]:
    try:
        metrics = server.get("/metrics").text
    except httpx.TransportError:
        return []  # nobody listens yet
    return [metrics.count(f'scansion_scheduler_up{{group="{group}"}} 1.0') for group in range(2)]


def ranks(server: Any) -> list[psutil.Process]:
    """The scheduler processes in the order of their start: the ranks of group 0, then those of group 1."""
    children = psutil.Process(server.process.pid).children()
    return sorted(
        (child for child in children if any("libtorch" in mapping.path for mapping in child.memory_maps())),
        key=lambda child: child.pid,
    )


class Streaming:
    """A client that reads a long stream in a thread."""

    def __init__(self, server: Any, prompt: str, max_tokens: int) -> None:
        self.events: list[str] = []
        self.ended = 0.0
        self._url = server.url + TEXT
        self._body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=120, trust_env=False) as response:
            self.events.extend(line for line in response.iter_lines() if line)
        self.ended = time.monotonic()

    @property
    def error(self) -> str | None:
        last = self.events[-1].removeprefix("data: ")
        return None if last == "[DONE]" else json.loads(last)["error"]["message"]


@pytest.fixture
def stream_on_both(parallel: Any) -> Iterator[Callable[[int], list[Streaming]]]:
    """Starts two streams; each copy of the model gets one."""
    started: list[Streaming] = []

    def start(max_tokens: int) -> list[Streaming]:
        started.extend(Streaming(parallel, letter, max_tokens) for letter in "ab")
        parallel.wait_until(
            lambda: (
                [group["stats"]["running_requests"] for group in parallel.get("/server_info").json()["groups"]]
                == [1, 1]
            ),
            "running on both copies",
        )
        return started

    yield start
    for stream in started:
        stream.thread.join(120)


def ask(server: Any, prompt: str = "the quick brown fox", **options: Any) -> dict[str, Any]:
    answer = server.post(TEXT, json={"prompt": prompt, "max_tokens": 8, "ignore_eos": True, **options})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_every_copy_gives_the_same_answer_whoever_is_asked(parallel: Any) -> None:
    prompts = ["the lazy dog"] * 6
    choices = ask(parallel, prompts, temperature=0)["choices"]
    assert len({choice["text"] for choice in choices}) == 1
    totals = [group["stats"]["prompt_tokens_total"] for group in parallel.get("/server_info").json()["groups"]]
    assert all(total > 0 for total in totals)


def test_ranks_agree_on_grammars(parallel: Any) -> None:
    schema = {"type": "object", "properties": {"x": {"enum": ["fox", "dog"]}}, "required": ["x"]}
    schema["additionalProperties"] = False
    body = ask(
        parallel,
        ["a", "b", "c", "d"],
        max_tokens=60,
        ignore_eos=False,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    assert all(json.loads(choice["text"])["x"] in ("fox", "dog") for choice in body["choices"])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_its_groups_requests_at_once_and_the_group_comes_back(
    parallel: Any, stream_on_both: Callable[[int], list[Streaming]], rank: int
) -> None:
    before = ranks(parallel)
    assert len(before) == 4
    of_group = {process.pid: process for victim in before[:2] for process in [victim, *victim.children(recursive=True)]}
    streams = stream_on_both(600)
    before[rank].kill()
    died = time.monotonic()
    for stream in streams:
        stream.thread.join(120)
    told = [stream for stream in streams if stream.error is not None]
    assert len(told) == 1, "the other copy's stream was to go on"
    assert told[0].ended - died < TOLD_SECONDS
    assert psutil.wait_procs(of_group.values(), timeout=5)[1] == [], "a process of the dead group is left"
    assert parallel.health() == 200
    wait_whole(parallel)
    after = ranks(parallel)
    assert {process.pid for process in before[2:]} < {process.pid for process in after}
    assert len(after) == 4
    ask(parallel, ["a", "b"])


def test_a_stopped_rank_is_told_and_its_group_replaced(
    parallel: Any, stream_on_both: Callable[[int], list[Streaming]]
) -> None:
    before = ranks(parallel)
    streams = stream_on_both(1000)
    before[1].suspend()
    stopped = time.monotonic()
    told = SILENCE_SECONDS + TOLD_SECONDS
    parallel.wait_until(lambda: any(stream.ended and stream.error for stream in streams), "telling", told)
    assert min(stream.ended for stream in streams if stream.ended and stream.error) - stopped < told
    assert parallel.health() == 200
    wait_whole(parallel)
    assert not {process.pid for process in before[:2]} & {process.pid for process in ranks(parallel)}
    assert psutil.wait_procs(before[:2], timeout=5)[1] == []


def test_sigterm_ends_all_ranks_in_order(parallel: Any) -> None:
    children = parallel.children()
    parallel.process.send_signal(signal.SIGTERM)
    assert parallel.process.wait(60) == 0
    assert psutil.wait_procs(children, timeout=5)[1] == []
    end = parallel.log().split("SIGTERM:")[-1]
    assert "killing it" not in end
    assert "Traceback" not in end


def test_a_busy_meeting_port_is_told_before_anything_loads(start_server: Callable[..., Any], model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = start_server(*FLAGS, "--tp", "2", "--dist-init-addr", f"127.0.0.1:{port}", model=str(model))
        assert server.process.wait(60) == 1
    assert server.log().splitlines() == [
        f"scansion: port {port} of 127.0.0.1, where the ranks are to meet, is in use; choose another with "
        "--dist-init-addr, on every node"
    ]


def test_a_number_of_ranks_that_does_not_divide_is_one_message(start_server: Callable[..., Any], model: Path) -> None:
    server = start_server(*FLAGS, "--tp", "3", model=str(model))
    assert server.process.wait(120) == 1
    log = server.log()
    assert log.splitlines()[-1].startswith("scansion: ")
    assert "8" in log.splitlines()[-1]
    assert "Traceback" not in log
    assert log.count("scansion: ") == 1


def on_two_nodes(start_server: Callable[..., Any], model: Path, *flags: str, **differing: str) -> list[Any]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    common = (*FLAGS, "--tp", "2", "--nnodes", "2", "--dist-init-addr", f"127.0.0.1:{port}", *flags)
    second = [text for name, value in differing.items() for text in (f"--{name}", value)]
    return [
        start_server(*common, "--node-rank", "0", model=str(model)),
        start_server(*common, "--node-rank", "1", *second, model=str(model)),
    ]


def test_ranks_of_two_nodes_serve_together_and_find_each_other_again(
    start_server: Callable[..., Any], model: Path
) -> None:
    first, second = on_two_nodes(start_server, model)
    first.wait_ready()
    second.wait_until(lambda: "rank 1 of" in second.log(), "saying that it is ready")
    assert second.health() == 0, "only node 0 has the HTTP port"
    answer = ask(first, temperature=0)["choices"]
    [old] = ranks(second)
    waiting = Streaming(first, "a", 4000)
    first.wait_until(lambda: first.stats()["running_requests"] == 1, "running")
    os.kill(old.pid, signal.SIGKILL)
    died = time.monotonic()
    waiting.thread.join(30)
    assert waiting.error is not None
    assert waiting.ended - died < TOLD_SECONDS
    first.wait_until(lambda: first.health() == 503, "noticing it")
    first.wait_ready()
    assert ask(first, temperature=0)["choices"] == answer
    for node in (first, second):
        node.process.send_signal(signal.SIGTERM)
    assert [node.process.wait(60) for node in (first, second)] == [0, 0]


def test_nodes_that_would_load_different_things_say_so(start_server: Callable[..., Any], model: Path) -> None:
    nodes = on_two_nodes(start_server, model, seed="5")
    for node in nodes:
        assert node.process.wait(120) == 1
    assert any("differ in" in node.log().splitlines()[-1] for node in nodes), [node.log() for node in nodes]

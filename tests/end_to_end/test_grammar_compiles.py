"""Compiles that do not end, over HTTP, beside an answer that goes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

MODEL = "SmolLM2-135M-Instruct"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TIMEOUT = 4


@pytest.fixture(scope="module")
def impatient(start_server: Callable[..., Any]) -> Any:
    running = start_server("--grammar-timeout", str(TIMEOUT), "--kv-cache-tokens", "8192")
    running.wait_ready()
    yield running
    running.stop()


def endless(number: int) -> dict[str, Any]:
    """About 15 s of compiling, and different for each number."""

    def nested(depth: int) -> dict[str, Any]:
        inner = nested(depth - 1) if depth else {"type": "string", "maxLength": number}
        named = ({"properties": {f"{x}{depth}": inner}, "required": [f"{x}{depth}"]} for x in "ab")
        return {"oneOf": [{"type": "object", **one} for one in named]}

    form = {"type": "json_schema", "json_schema": {"name": "endless", "schema": nested(11)}}
    return {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "response_format": form}


def metrics(server: Any) -> dict[str, float]:
    families = text_string_to_metric_families(server.get("/metrics").text)
    return {sample.name.removeprefix("scansion_grammar_"): sample.value for f in families for sample in f.samples}


def is_answered(server: Any, body: dict[str, Any]) -> bool:
    return bool(server.post(CHAT, json=body).status_code == 200)


class Stream(threading.Thread):
    """An answer that is being written."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.num_tokens = 0
        self.error = ""
        self.is_over = threading.Event()
        self.has_begun = threading.Event()

    def run(self) -> None:
        asked = {"model": MODEL, "prompt": "Once", "max_tokens": 6000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", self.url + TEXT, json=asked, timeout=60, trust_env=False) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    self.num_tokens += 1
                    self.error = self.error or ("error" in json.loads(line[6:]) and line) or ""
                    self.has_begun.set()
                if self.is_over.is_set():
                    return


def test_endless_compiles_cost_their_own_requests_and_nothing_else(impatient: Any) -> None:
    known = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "choice": ["a", "b"]}
    # The server is ready before its compile processes are; from then on the known form needs none of them.
    impatient.wait_until(lambda: is_answered(impatient, known), "starting the compile processes")
    before, num_processes = metrics(impatient), len(impatient.children())
    stream = Stream(impatient.url)
    stream.start()
    assert stream.has_begun.wait(60)

    def ask(number: int, patience: float) -> tuple[int, Any]:
        try:
            response = httpx.post(impatient.url + CHAT, json=endless(number), timeout=patience, trust_env=False)
        except httpx.TimeoutException:
            return 0, None
        return response.status_code, response.json()["error"]["code"]

    num_tokens = stream.num_tokens
    with ThreadPoolExecutor(6) as clients:
        leaving = clients.submit(ask, 9, TIMEOUT - 1)
        impatient.wait_until(lambda: metrics(impatient)["queue_requests"] == 1, "queueing", seconds=30)
        assert leaving.result() == (0, None)
        impatient.wait_until(lambda: metrics(impatient)["queue_requests"] == 0, "noticing who left", seconds=30)

        staying = [clients.submit(ask, number, 60) for number in (1, 2, 3, 4, 5, 6)]
        impatient.wait_until(lambda: metrics(impatient)["queue_requests"] >= 2, "queueing", seconds=30)
        assert impatient.post(CHAT, json=known).status_code == 200
        outcomes = [answer.result() for answer in staying]
    # The machine writes a stream beside them: it does not give each the work that would prove the grammar at fault.
    assert set(outcomes) <= {(400, "grammar_timeout"), (503, "grammar_timeout"), (503, "grammar_unavailable")}
    assert {code for _, code in outcomes} >= {"grammar_timeout"}

    impatient.wait_until(lambda: metrics(impatient)["queue_requests"] == 0, "emptying the queue", seconds=30)
    new = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "regex": "[xy]{3}", "max_tokens": 9}
    impatient.wait_until(lambda: is_answered(impatient, new), "serving a new form", seconds=30)
    stream.is_over.set()
    stream.join(60)
    assert not stream.error
    assert stream.num_tokens > num_tokens + 5

    change = {name: value - before.get(name, 0) for name, value in metrics(impatient).items()}
    assert change["timeouts_total"] + change["compiles_displaced_total"] >= 1
    assert change["worker_restarts_total"] >= 1
    assert change["aborts_total"] >= 1
    assert change["compiles_cancelled_total"] >= 1
    assert change["cache_hits_total"] >= 1
    assert change["requests_total"] >= 9
    assert change["mask_rows_total"] >= 1
    impatient.wait_until(
        lambda: len(impatient.children()) <= num_processes, "ending the processes of the compiles", seconds=30
    )

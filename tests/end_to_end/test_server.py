"""The real server beside its API: bad bytes, metrics, what a lost client leaves behind, idleness."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

MODEL = "SmolLM2-135M-Instruct"
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"[]", 400),
        (b'{"model": NaN}', 400),
        (b"x" * (10 << 20), 413),
        (b"[" * 100_000, 400),
        (b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}', 400),
    ],
    ids=["cut", "not-utf8", "array", "nan", "10MB", "deep", "surrogate"],
)
def test_bad_bytes_are_refused_at_once_and_harm_nothing(server: Any, body: bytes, status: int) -> None:
    began = time.monotonic()
    response = server.post(CHAT, content=body, headers={"Content-Type": "application/json"})
    assert time.monotonic() - began < 5
    assert response.status_code in (status, 404)
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert server.health() == 200


def test_metrics_count_requests_and_tokens(server: Any) -> None:
    def value(name: str) -> float:
        families = text_string_to_metric_families(server.get("/metrics").text)
        return sum(s.value for family in families for s in family.samples if s.name == name)

    names = ("scansion_requests_total", "scansion_generated_tokens_total", "scansion_time_to_first_token_seconds_count")
    before = [value(name) for name in names]
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 5, "ignore_eos": True, "stream": True}
    assert server.post("/v1/completions", json=body).status_code == 200
    after = [value(name) for name in names]
    assert after[0] >= before[0] + 1
    assert after[1] == before[1] + 5
    assert after[2] == before[2] + 1


def test_a_client_that_goes_away_frees_its_slot_and_pages(server: Any) -> None:
    body = {"model": MODEL, "prompt": "Once upon", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60, trust_env=False) as response:
        lines = response.iter_lines()
        while not next(lines).startswith("data: "):
            pass
        assert server.stats()["running_requests"] == 1
    server.wait_until(lambda: server.stats()["running_requests"] == 0, "freeing the slot", seconds=20)
    stats = server.stats()
    assert stats["kv_tokens_used"] == 0
    assert stats["generated_tokens_total"] < 4000


def test_an_idle_server_uses_no_cpu(server: Any) -> None:
    processes = server.children()

    def used() -> float:
        return sum(times.user + times.system for times in (process.cpu_times() for process in processes))

    def uses_nothing_for_two_seconds() -> bool:
        before = used()
        time.sleep(2.0)
        return used() - before <= 0.1

    # Compile processes may still be warming up on a busy machine.
    server.wait_until(uses_nothing_for_two_seconds, "coming to rest", seconds=40)


def test_information_routes_answer(server: Any) -> None:
    assert server.get("/version").json()["version"]
    assert server.get("/server_info").json()["models"] == [MODEL]
    assert server.get("/docs").status_code == 200
    assert server.post("/flush_cache").status_code == 200


def test_the_http_process_holds_no_torch(server: Any) -> None:
    scheduler = server.child("libtorch")
    direct = [child for child in server.children() if child.ppid() == server.process.pid]
    for child in direct:
        if child.pid != scheduler.pid:
            assert not any("libtorch" in mapping.path for mapping in child.memory_maps())


def test_the_dashboard_shows_only_metrics_that_exist(server: Any) -> None:
    exported = {
        sample.name
        for family in text_string_to_metric_families(server.get("/metrics").text)
        for sample in family.samples
    }
    dashboard = json.loads((Path(__file__).parents[2] / "docker" / "grafana-dashboard.json").read_text())
    shown = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"scansion_\w+", target["expr"])
    }
    assert shown
    assert shown <= exported

"""What a step costs on two ranks against one, through the whole server: loop, messages between ranks and collectives.

With ideal ranks a step on two would take half the time of one. What it takes beyond that half is the overhead:
messages, collectives, and what is not split, such as sampling.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench.serve.own_server import own_server

_START_SECONDS = 300.0
_WARM_SECONDS = 2.0


def step_milliseconds(model: Path, *, tp: int, rows: int, seconds: float) -> float:
    """Wall time of a decode step with ``rows`` running requests, over ``seconds``; each rank has one thread."""
    flags = ["--model", str(model), "--load-format", "dummy", "--dtype", "float32", "--num-threads", "1"]
    flags += ["--kv-cache-tokens", str(8192 * max(2, rows)), "--tp", str(tp), "--no-access-log", "--drain-timeout", "0"]
    with own_server(flags, start_seconds=_START_SECONDS) as server:
        clients = [threading.Thread(target=_generate, args=(server.base_url, row), daemon=True) for row in range(rows)]
        for client in clients:
            client.start()
        while _stats(server.base_url)["running_requests"] < rows:
            time.sleep(0.05)
        time.sleep(_WARM_SECONDS)
        before, began = _stats(server.base_url)["steps_total"], time.perf_counter()
        time.sleep(seconds)
        after, ended = _stats(server.base_url), time.perf_counter()
        if after["running_requests"] < rows:
            raise RuntimeError("requests ended while they were measured: choose fewer --seconds")
        return 1000 * (ended - began) / int(after["steps_total"] - before)


def compare(model: Path, *, rows: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of a step on one rank and on two, and how far two are from half of one."""
    one, two = (step_milliseconds(model, tp=tp, rows=rows, seconds=seconds) for tp in (1, 2))
    return {
        "rows": rows,
        "tp1_step_ms": round(one, 2),
        "tp2_step_ms": round(two, 2),
        "tp2_overhead_ms": round(two - one / 2, 2),
        "speedup": round(one / two, 2),
    }


def _generate(url: str, row: int) -> None:
    body = {"prompt": f"row {row}", "max_tokens": 8000, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        _open(request, timeout=600).read()
    except OSError:
        return  # the server was stopped: enough was measured


def _stats(url: str) -> dict[str, Any]:
    stats: dict[str, Any] = json.load(_open(f"{url.removesuffix('/v1')}/server_info", timeout=60))["stats"]
    return stats


def _open(request: str | urllib.request.Request, *, timeout: float) -> Any:
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout)

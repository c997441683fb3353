"""Whether the memory of a server levels off under schemas that never repeat: ``python -m bench.grammar_memory``.

Each request brings a schema that nothing has seen before and asks for one token. The cache of compiled grammars is
bounded in bytes, so what the server holds in memory may grow until the bound is reached and not after it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from bench.serve.benchmark import first_model
from bench.serve.client import Sending, Target, exchange, open_session
from bench.serve.own_server import OwnServer, own_server
from bench.serve.workloads import Job

_SENDING = Sending()
_BACKENDS = ("llguidance", "xgrammar")
_READINGS = 10
_ALLOWED_GROWTH_MIB = 32.0
"""Of the last half of a run: allocators keep what they have had."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 when memory still grows at the end, or a request failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.grammar_memory", description=__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="schemas for each backend")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--cache-bytes", type=int, default=16 << 20, help="bound of the server's cache")
    parser.add_argument("--serve-args", default="", metavar="ARGS", help="further options of the server")
    options = parser.parse_args(arguments)
    serve = ["--grammar-cache-bytes", str(options.cache_bytes), *shlex.split(options.serve_args)]
    is_good = True
    for backend in _BACKENDS:
        with own_server(serve, start_seconds=600) as server:
            is_good &= asyncio.run(_measure(server, backend, options))
    return 0 if is_good else 1


async def _measure(server: OwnServer, backend: str, options: argparse.Namespace) -> bool:
    target = Target(label="server", base_url=server.base_url, model=await first_model(server.base_url, None))
    numbers = iter(range(options.requests))
    every = max(1, options.requests // _READINGS)
    readings = [server.resident_mib()]
    print(f"{backend}: {readings[0]:.0f} MiB before the first schema", flush=True)
    failed = 0
    began = time.monotonic()
    async with open_session(target, _SENDING) as session:

        async def client() -> None:
            nonlocal failed
            for number in numbers:
                failed += not await _ask(session, target, backend, number)
                if (number + 1) % every == 0:
                    readings.append(server.resident_mib())
                    passed = time.monotonic() - began
                    print(f"{backend}: {readings[-1]:.0f} MiB after {number + 1} schemas, {passed:.0f} s", flush=True)

        await asyncio.gather(*(client() for _ in range(options.clients)))
    growth = readings[-1] - readings[len(readings) // 2]
    is_level = growth <= _ALLOWED_GROWTH_MIB
    print(
        f"{'pass' if is_level and not failed else 'FAIL'}: {backend}: {growth:+.0f} MiB in the last half "
        f"(at most {_ALLOWED_GROWTH_MIB:.0f}); {failed} of {options.requests} requests failed",
        flush=True,
    )
    return is_level and not failed


async def _ask(session: aiohttp.ClientSession, target: Target, backend: str, number: int) -> bool:
    name = f"field_{time.time_ns()}_{number}"
    schema = {
        "type": "object",
        "properties": {name: {"type": "string"}, f"{name}_count": {"type": "integer"}},
        "required": [name],
        "additionalProperties": False,
    }
    body: dict[str, Any] = {
        "model": target.model,
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 1,
        "stream": True,
        "json_schema": schema,
        "grammar_backend": backend,
    }
    ended = await exchange(session, target, json.dumps(body).encode(), Job(messages=(), max_tokens=1), 0)
    return ended.failure is None


if __name__ == "__main__":
    raise SystemExit(main())

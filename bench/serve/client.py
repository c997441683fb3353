"""Send one request and keep what comes back, with the time each part came.

Nothing is parsed here: a generator that shares its machine with the server takes its CPU time away.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp

from bench.serve.sse import Piece
from bench.serve.workloads import Job

FailureKind = Literal[
    "connect", "http_status", "stalled", "timeout", "closed", "protocol", "error_event", "malformed", "no_tokens"
]
"""``closed``: the stream ended before its end was announced. ``no_tokens``: it ended well and brought nothing."""

_MAX_ERROR_BODY_BYTES = 4096
_CONNECT_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Failure:
    kind: FailureKind
    message: str


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server under load."""

    label: str
    base_url: str
    """Ends in ``/v1``."""
    model: str
    api_key: str | None = None


@dataclass(frozen=True, kw_only=True)
class Sending:
    """How requests are sent, the same for every request of a run."""

    timeout_seconds: float = 600.0
    """Longest time of one request."""
    stall_seconds: float = 120.0
    """Longest silence within one request."""
    ignore_eos: bool = True
    """Whether jobs of fixed length say so through the ``ignore_eos`` extension."""
    extra_body: dict[str, Any] = field(default_factory=dict)
    drop_fields: frozenset[str] = frozenset()

    def encode(self, model: str, job: Job, body: dict[str, Any]) -> bytes:
        """The bytes of a request body."""
        whole: dict[str, Any] = {"model": model, "stream": True, "stream_options": {"include_usage": True}, **body}
        if job.fixed_length and self.ignore_eos:
            whole["ignore_eos"] = True
        whole |= self.extra_body
        return json.dumps({name: value for name, value in whole.items() if name not in self.drop_fields}).encode()


@dataclass
class Exchange:
    """One request and its raw answer. Times are seconds of ``time.perf_counter``."""

    job: Job
    turn: int
    started: float
    ended: float = 0.0
    pieces: list[Piece] = field(default_factory=list)
    failure: Failure | None = None


def open_session(target: Target, sending: Sending) -> aiohttp.ClientSession:
    """A session that opens one connection per request, as many at once as there are requests.

    Reused connections would add an error of their own: one that the server closes just as a request is written to it.
    """
    headers = {"Content-Type": "application/json"}
    if target.api_key is not None:
        headers["Authorization"] = f"Bearer {target.api_key}"
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        headers=headers,
        timeout=aiohttp.ClientTimeout(
            total=sending.timeout_seconds,
            sock_connect=_CONNECT_TIMEOUT_SECONDS,
            sock_read=sending.stall_seconds,
        ),
    )


async def exchange(session: aiohttp.ClientSession, target: Target, body: bytes, job: Job, turn: int) -> Exchange:
    """Send one request and read its answer to the end. Every way it can fail is noted in the result, none is raised."""
    result = Exchange(job=job, turn=turn, started=time.perf_counter())
    try:
        url = f"{target.base_url}/chat/completions"
        async with session.post(url, data=body, allow_redirects=False) as response:
            if response.status == 200:
                async for received in response.content.iter_any():
                    result.pieces.append((time.perf_counter(), received))
            else:
                text = (await response.content.read(_MAX_ERROR_BODY_BYTES)).decode("utf-8", "replace")
                result.failure = Failure("http_status", f"HTTP {response.status}: {text}")
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError) as error:
        result.failure = Failure(_kind(error), f"{type(error).__name__}: {error}")
    result.ended = time.perf_counter()
    return result


def _kind(error: Exception) -> FailureKind:
    match error:
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
            return "connect"
        case aiohttp.SocketTimeoutError():
            return "stalled"
        case asyncio.TimeoutError():
            return "timeout"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError() | OSError():
            return "closed"
        case _:
            return "protocol"

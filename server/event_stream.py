"""Server-sent events: the response object, and the encoders' common shape.

Written for the cost of one token: no task, no timer and no JSON tree per event. What one message of the scheduler
brings for a stream goes out in one write.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from scheduler.messages import PromptLogprobs
from server.choices import ChoiceDelta
from server.errors import ApiError, ClientDisconnectedError
from server.generation import Generation
from server.request_record import record_of

logger = logging.getLogger("scansion.stream")

DONE = b"data: [DONE]\n\n"


def event(data: Mapping[str, Any]) -> bytes:
    """One event from a JSON tree."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


class StreamEncoder(Protocol):
    """Turns deltas into one dialect's events; ``b""`` where there is nothing to say."""

    def start(self) -> bytes: ...

    def prompt_logprobs(self, prompt_index: int, message: PromptLogprobs) -> bytes: ...

    def delta(self, choice: int, delta: ChoiceDelta) -> bytes: ...

    def end(self) -> bytes: ...


class EventStream(Response):
    """Streams a generation; an error after the start becomes an ``error`` event, and then the stream ends."""

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, encoder: StreamEncoder) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._generation = generation
        self._encoder = encoder
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await self._stream(send)
                last = self._encoder.end()
            except ApiError as error:
                record_of(scope).error = error.message
                last = _error_event(error)
            except ClientDisconnectedError:
                record_of(scope).is_disconnected = True
                return
            except Exception:
                logger.exception("request %s failed while streaming", record_of(scope).request_id)
                record_of(scope).error = "internal error"
                last = _error_event(ApiError("The server had an internal error while answering.", code="internal"))
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            self._generation.close()

    async def _stream(self, send: Send) -> None:
        generation, encoder = self._generation, self._encoder
        first = encoder.start()
        if first:
            await send({"type": "http.response.body", "body": first, "more_body": True})
        while deltas := await generation.next():
            parts = [
                encoder.prompt_logprobs(index, delta)
                if isinstance(delta, PromptLogprobs)
                else encoder.delta(index, delta)
                for index, delta in deltas
            ]
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})


def _error_event(error: ApiError) -> bytes:
    return b"event: error\ndata: " + error.encoded() + b"\n\n"

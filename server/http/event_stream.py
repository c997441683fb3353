"""Sending an answer, and server-sent events: the response object, and what writes a dialect's answers.

Written for the cost of one token: no task, no timer and no JSON tree per event. What one message of the scheduler
brings for a stream goes out in one write.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from scheduler.messages import PromptLogprobs
from server.errors import ApiError, ClientDisconnectedError
from server.generation.choices import ChoiceDelta, CollectedChoice
from server.generation.generation import Generation
from server.http.json_response import JsonResponse
from server.metrics.request_record import record_of

logger = logging.getLogger("scansion.stream")

DONE = b"data: [DONE]\n\n"


def event(data: Mapping[str, Any]) -> bytes:
    """One event from a JSON tree."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


class AnswerWriter(Protocol):
    """Writes one answer in its dialect: whole, or as events; ``b""`` where there is nothing to say."""

    def whole(self, choices: Sequence[CollectedChoice]) -> Mapping[str, Any]: ...

    def place(self, prompt_index: int, message: PromptLogprobs) -> None: ...

    def start(self) -> bytes: ...

    def prompt_logprobs(self, prompt_index: int, message: PromptLogprobs) -> bytes: ...

    def delta(self, choice: int, delta: ChoiceDelta) -> bytes: ...

    def end(self) -> bytes: ...


async def respond(generation: Generation, writer: AnswerWriter) -> Response:
    """The response to an admitted request: a stream if it asked for one, else the answer once it is whole.

    Raises
    ------
    ApiError
        An answer that is not streamed failed.
    ClientDisconnectedError
    """
    if generation.is_streamed:
        return EventStream(generation, writer)
    try:
        return JsonResponse(writer.whole(await generation.collect(writer.place)))
    finally:
        generation.close()


class EventStream(Response):
    """Streams a generation; an error after the start becomes an ``error`` event, and then the stream ends."""

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, writer: AnswerWriter) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._generation = generation
        self._writer = writer
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await self._stream(send)
                last = self._writer.end()
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
        generation, writer = self._generation, self._writer
        first = writer.start()
        if first:
            await send({"type": "http.response.body", "body": first, "more_body": True})
        while deltas := await generation.next():
            parts = [
                writer.prompt_logprobs(index, delta)
                if isinstance(delta, PromptLogprobs)
                else writer.delta(index, delta)
                for index, delta in deltas
            ]
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})


def _error_event(error: ApiError) -> bytes:
    return b"event: error\ndata: " + error.encoded() + b"\n\n"

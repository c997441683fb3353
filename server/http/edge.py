"""The outermost layer: every request gets an id, a log line and its place in the metrics, and never a bare failure."""

from __future__ import annotations

import logging
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.context import ServerContext
from server.errors import ApiError
from server.http.access_log import log_request
from server.http.request_id import choose_request_id
from server.metrics.request_record import RequestRecord, attach_record

logger = logging.getLogger("scansion.http")

_PROBES = frozenset({"/health", "/metrics"})
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Edge:
    """ASGI middleware around everything else."""

    def __init__(self, app: ASGIApp, context: ServerContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = self._context
        record = RequestRecord(choose_request_id(_header(scope, b"x-request-id")), scope["method"], scope["path"])
        attach_record(scope, record)
        id_header = (b"x-request-id", record.request_id.encode())

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message.get("headers", ()), id_header]
            await send(message)

        # A request counts once it is whole: a client that stops in the middle of a body holds up no shutdown.
        is_counted = scope["path"] not in _PROBES and not _has_body(scope)
        context.num_http_requests += is_counted

        async def receive_noted() -> Message:
            nonlocal is_counted
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False) and not is_counted:
                is_counted = scope["path"] not in _PROBES
                context.num_http_requests += is_counted
            return message

        try:
            await self._app(scope, receive_noted, send_noted)
        except Exception:
            # The application has answered already, if it could; what is left is to say so in the log.
            logger.exception("request %s failed", record.request_id)
            if not record.status:
                await _answer_internal_error(send_noted)
        finally:
            context.num_http_requests -= is_counted
            self._note_end(scope, record)

    def _note_end(self, scope: Scope, record: RequestRecord) -> None:
        duration = time.perf_counter() - record.started
        metrics = self._context.metrics
        endpoint = endpoint_label(scope)
        status = "disconnected" if record.is_disconnected else str(record.status)
        method = record.method if record.method in _METHODS else "other"
        metrics.requests.labels(endpoint, method, status).inc()
        metrics.end_to_end.labels(endpoint).observe(duration)
        if record.is_disconnected:
            metrics.disconnects.inc()
        if record.prompt_tokens is not None:
            metrics.request_prompt_tokens.observe(record.prompt_tokens)
            metrics.request_generated_tokens.observe(record.completion_tokens)
            metrics.generated_tokens.inc(record.completion_tokens)
            if record.seconds_to_first_token is not None:
                metrics.time_to_first_token.observe(record.seconds_to_first_token)
        if self._context.config.access_log:
            log_request(record, duration, is_probe=scope["path"] in _PROBES)


def endpoint_label(scope: Scope) -> str:
    """The route's own path (never what a client made up, which would grow the metrics without bound)."""
    path: Any = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else "other"


def _has_body(scope: Scope) -> bool:
    length = _header(scope, b"content-length")
    return _header(scope, b"transfer-encoding") is not None or (length is not None and length != b"0")


def _header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


async def _answer_internal_error(send: Send) -> None:
    body = ApiError("The server had an internal error.", code="internal").encoded()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 500, "headers": headers})
    await send({"type": "http.response.body", "body": body})

"""One client's connection: uvicorn's, with bounds on what may come before, between and behind requests.

uvicorn bounds neither headers nor the requests that a client sends ahead, and stops reading while one of these waits,
so that it does not see a client leave. Here reading goes on, and a client that sends too much is cut off instead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from http import HTTPStatus
from typing import ClassVar, NoReturn

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from server.errors import ApiError, BadRequestError, HeadersTooLargeError

logger = logging.getLogger("scansion.http")

MAX_HEADERS = 100
MAX_HEADER_BYTES = 64 * 1024
"""Of the request line and all headers together; of trailers and of what surrounds chunks, too."""
MAX_AHEAD = 64
"""Requests that may wait on one connection for the answer to an earlier one."""
MAX_AHEAD_BYTES = 64 * 1024
_LINGER_SECONDS = 2.0
"""Many clients read no answer before they have sent everything, and lose it when the connection is reset under them."""
_WARN_SECONDS = 10.0


class HttpConnection(HttpToolsProtocol):
    """uvicorn's connection, whose parser callbacks are counted. Subclasses say the limits (:func:`limited`)."""

    header_timeout: ClassVar[float]
    """Seconds a connection may take for a request's headers, from its first byte or, of a new one, from the start."""
    write_timeout: ClassVar[float]
    """Seconds in which a client that has much of an answer to read must take some of it."""
    max_connections: ClassVar[int]

    _warned: ClassVar[float] = -_WARN_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._quiet_bytes = 0  # since the parser last gave something whole: all it holds is among them
        self._ahead_bytes = 0
        self._header_bytes = 0
        self._is_whole = True  # the last request: its body has come
        self._is_refused = False
        self._refusal: ApiError | None = None
        self._answering: RequestResponseCycle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._reading_deadline: asyncio.TimerHandle | None = None
        if len(self.connections) > self.max_connections:
            self._warn_full()
            transport.abort()
            return
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._heard()
        self._read_some()
        # uvicorn tells only the last request that its client is gone. Those that wait are never started.
        self._end_answer()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return  # thrown away until the connection is closed
        self._quiet_bytes += len(data)
        if self.pipeline:
            self._ahead_bytes += len(data)
            if self._ahead_bytes > MAX_AHEAD_BYTES:
                self._cut_off()
                return
        super().data_received(data)
        if self._quiet_bytes > MAX_HEADER_BYTES and not self._is_refused:
            self._refuse(_too_large())
        elif self._quiet_bytes and self._deadline is None:
            self._expect_headers()

    def on_message_begin(self) -> None:
        self._is_whole = False
        self._header_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_header(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header(len(name) + len(value))
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._give_up(_too_large())

    def on_headers_complete(self) -> None:
        self._heard()
        super().on_headers_complete()
        if not self.pipeline:
            self._answering = self.cycle
            return
        if len(self.pipeline) > MAX_AHEAD:
            self._give_up(BadRequestError("Too many requests wait on one connection.", code="invalid_http"))
        self.flow.resume_reading()  # else nobody would see the client leave

    def on_body(self, body: bytes) -> None:
        self._heard()
        super().on_body(body)
        if self.pipeline:
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        self._heard()
        self._is_whole = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self._is_whole and not self.pipeline:
            self.loop.call_later(_LINGER_SECONDS, self._close_unless_whole, self.cycle)
        self._answering = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if not self.pipeline:
            self._ahead_bytes = 0

    def pause_writing(self) -> None:
        self._reading_deadline = self.loop.call_later(self.write_timeout, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._read_some()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for whatever the parser, or a callback above, refuses."""
        self._refuse(self._refusal or BadRequestError("The request is not valid HTTP.", code="invalid_http"))

    def _count_header(self, num_bytes: int) -> None:
        self._header_bytes += num_bytes
        if self._header_bytes > MAX_HEADER_BYTES:
            self._give_up(_too_large())

    def _give_up(self, error: ApiError) -> NoReturn:
        """Leave the parser, whose own error hides the one that a callback raises."""
        self._refusal = error
        raise error

    def _refuse(self, error: ApiError) -> None:
        answering = self._answering
        if answering is not None and not answering.response_complete:
            is_its_body = answering.scope is self.scope and not self._is_whole
            if answering.response_started or not is_its_body:
                self._cut_off()  # the error would be read as the answer to an earlier request
                return
            self._end_answer()
        self._is_refused = True
        body = error.encoded()
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (error.status, HTTPStatus(error.status).phrase.encode(), len(body), body)
        )
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def _end_answer(self) -> None:
        """Tell the request that is being answered that its client is gone."""
        answering = self._answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()

    def _cut_off(self) -> None:
        self._is_refused = True
        self.transport.abort()  # closing would wait for a client that reads nothing

    def _expect_headers(self) -> None:
        self._deadline = self.loop.call_later(self.header_timeout, self._on_deadline)

    def _heard(self) -> None:
        self._quiet_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _read_some(self) -> None:
        if self._reading_deadline is not None:
            self._reading_deadline.cancel()
            self._reading_deadline = None

    def _on_deadline(self) -> None:
        self._deadline = None
        if self._answering is None or self._answering.response_complete:
            self.transport.abort()

    def _close_unless_whole(self, cycle: RequestResponseCycle) -> None:
        if self.cycle is cycle and not self._is_whole:
            self.transport.abort()

    @classmethod
    def _warn_full(cls) -> None:
        now = time.monotonic()
        if now - cls._warned >= _WARN_SECONDS:
            cls._warned = now
            logger.warning(
                "%d connections are open, as many as the limit of open files allows (ulimit -n): "
                "further ones are closed at once",
                cls.max_connections,
            )


def limited(*, header_timeout: float, write_timeout: float, max_connections: int) -> type[HttpConnection]:
    """The connection class of a server with these limits."""
    limits = {"header_timeout": header_timeout, "write_timeout": write_timeout, "max_connections": max_connections}
    return type("LimitedHttpConnection", (HttpConnection,), limits)


def _too_large() -> HeadersTooLargeError:
    return HeadersTooLargeError(
        f"The request has more than {MAX_HEADERS} headers, or more than {MAX_HEADER_BYTES} bytes of them."
    )

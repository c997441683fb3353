"""Errors a client sees, each with its HTTP status, and the one OpenAI body they all become."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler.messages import ErrorInfo

_MAX_MESSAGE = 2000
_MAX_PARAM = 200


class ApiError(Exception):
    """A failure with an answer: ``{"error": {"message", "type", "param", "code"}}``.

    Much of a message may repeat what the client sent, so here its length is bounded, and that of ``param``.
    """

    status = 500
    type = "server_error"
    default_code = "internal"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.message = _shortened(message, _MAX_MESSAGE)
        super().__init__(self.message)
        self.param = None if param is None else _shortened(param, _MAX_PARAM)
        self.code = code if code is not None else self.default_code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The OpenAI error object."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def encoded(self) -> bytes:
        """The OpenAI error object as JSON."""
        return msgspec.json.encode(self.body())


class BadRequestError(ApiError):
    status = 400
    type = "invalid_request_error"
    default_code = "invalid_value"


class AuthenticationError(ApiError):
    status = 401
    type = "authentication_error"
    default_code = "invalid_api_key"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"WWW-Authenticate": "Bearer"})


class NotFoundError(ApiError):
    status = 404
    type = "invalid_request_error"
    default_code = "not_found"


class ModelNotFoundError(NotFoundError):
    default_code = "model_not_found"


class MethodNotAllowedError(ApiError):
    status = 405
    type = "invalid_request_error"
    default_code = "method_not_allowed"


class BodyTimeoutError(ApiError):
    status = 408
    type = "invalid_request_error"
    default_code = "body_timeout"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"Connection": "close"})


class RequestAbortedError(ApiError):
    """Someone called ``/abort_request``."""

    status = 409
    type = "request_aborted"
    default_code = "request_aborted"


class BodyTooLargeError(ApiError):
    status = 413
    type = "invalid_request_error"
    default_code = "body_too_large"


class HeadersTooLargeError(ApiError):
    status = 431
    type = "invalid_request_error"
    default_code = "headers_too_large"


class OverloadedError(ApiError):
    status = 429
    type = "rate_limit_error"
    default_code = "queue_full"


class UnavailableError(ApiError):
    """The scheduler is not there, or this process is about to end."""

    status = 503
    type = "service_unavailable_error"
    default_code = "engine_unavailable"


class TimedOutError(ApiError):
    status = 504
    type = "timeout_error"
    default_code = "timeout"


class SchedulerError(ApiError):
    """An error the scheduler reported; status and wording are its own."""

    def __init__(self, info: ErrorInfo, *, retry_after: int) -> None:
        headers = {"Retry-After": str(retry_after)} if info.status in (429, 503) else None
        code = info.code or {400: "invalid_value", 503: "engine_unavailable"}.get(info.status)
        super().__init__(info.message, param=info.param, code=code, headers=headers)
        self.status = info.status
        self.type = info.type


class ClientDisconnectedError(Exception):
    """Nobody is left to answer to."""


def _shortened(text: str, limit: int) -> str:
    """``text``, or its beginning and its end, where the advice often stands, around what is left out."""
    if len(text) <= limit:
        return text
    end = limit // 4
    return f"{text[: limit - end]} … {text[-end:]}"

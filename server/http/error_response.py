"""The one place where exceptions become answers."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from server.errors import (
    ApiError,
    BadRequestError,
    ClientDisconnectedError,
    MethodNotAllowedError,
    NotFoundError,
)
from server.metrics.request_record import record_of


def error_response(error: ApiError) -> Response:
    """An OpenAI error body with the error's status and headers."""
    return Response(error.encoded(), error.status, error.headers, media_type="application/json")


def install_error_handlers(app: FastAPI, paths: Sequence[str]) -> None:
    """Give every exception an OpenAI body, those of the framework included; ``paths`` are what the endpoints have."""

    async def on_api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        record_of(request.scope).error = error.message
        return error_response(error)

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return await on_api_error(request, _from_framework(request, error, paths))

    async def on_disconnect(request: Request, error: Exception) -> Response:
        record_of(request.scope).is_disconnected = True
        return Response(status_code=400)  # nobody reads it

    async def on_anything_else(request: Request, error: Exception) -> Response:
        record_of(request.scope).error = type(error).__name__
        return error_response(ApiError("The server had an internal error.", code="internal"))

    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(ClientDisconnectedError, on_disconnect)
    app.add_exception_handler(Exception, on_anything_else)


def _from_framework(request: Request, error: HTTPException, paths: Sequence[str]) -> ApiError:
    path = request.url.path[:200]
    if error.status_code == 404:
        return NotFoundError(f"There is no {path!r} here; /docs lists what there is.{_same_end(path, paths)}")
    if error.status_code == 405:
        return MethodNotAllowedError(f"{path!r} does not answer to {request.method[:20]}.", headers=error.headers)
    refusal = BadRequestError(str(error.detail))
    refusal.status = error.status_code
    return refusal


def _same_end(path: str, paths: Sequence[str]) -> str:
    """The endpoint that is meant where the prefix is missing, or there twice: clients add ``/v1`` or do not."""
    same = [one for one in paths if one.endswith(path) or path.endswith(one)]
    meant = min(same, key=len) if same else next(iter(get_close_matches(path, paths, n=1, cutoff=0.85)), None)
    return "" if meant is None else f" Did you mean {meant!r}?"

"""Which web pages may call the server from a browser."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from server.errors import BadRequestError
from server.http.error_response import error_response


class Cors(CORSMiddleware):
    """Starlette's, with an OpenAI body where it refuses."""

    def preflight_response(self, request_headers: Headers) -> Response:
        answer = super().preflight_response(request_headers)
        if answer.status_code < 400:
            return answer
        error = BadRequestError(f"{bytes(answer.body).decode()} (--cors-origins).", code="cors_refused")
        allowed = {key: value for key, value in answer.headers.items() if not key.startswith("content-")}
        error.headers.update(allowed)
        return error_response(error)

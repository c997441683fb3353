"""API keys: any of the configured ones opens every route but ``/health``."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import AuthenticationError
from server.http.error_response import error_response

_OPEN_PATHS = frozenset({"/health"})


class Auth:
    """ASGI middleware that asks for ``Authorization: Bearer KEY``."""

    def __init__(self, app: ASGIApp, api_keys: Sequence[str], *, root_path: str = "") -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in api_keys]
        self._open_paths = _OPEN_PATHS | {root_path + path for path in _OPEN_PATHS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._digests and scope["path"] not in self._open_paths:
            refusal = self._refusal(scope)
            if refusal is not None:
                await error_response(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> AuthenticationError | None:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if not given:
            return AuthenticationError("Give an API key: 'Authorization: Bearer KEY'.")
        scheme, _, key = given[0].partition(b" ")
        digest = _digest(key.strip())
        # Digests have one length, and every key is compared: neither the time nor the order says how near a guess was.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if scheme.lower() != b"bearer" or not any(matches) or len(given) > 1:
            return AuthenticationError("The API key is not valid.")
        return None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()

"""Request ids: a caller's own when it is harmless, otherwise one made here."""

from __future__ import annotations

import re
import uuid

_HARMLESS = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")


def choose_request_id(header: bytes | None) -> str:
    """The ``X-Request-Id`` of the request when it can stand in a log line and a header as it is."""
    if header is not None and _HARMLESS.fullmatch(header):
        return header.decode("ascii")
    return f"req_{uuid.uuid4().hex}"

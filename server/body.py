"""Reading a JSON body: bounded while it arrives, and nothing let through that JSON or Unicode does not allow."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope

from server.config import HttpConfig
from server.errors import BadRequestError, BodyTimeoutError, BodyTooLargeError, ClientDisconnectedError


async def read_json_object(request: Request, config: HttpConfig) -> dict[str, Any]:
    """The request's body, which must be one JSON object.

    Raises
    ------
    BodyTooLargeError
        As soon as more than ``max_body_bytes`` are announced or have come; the rest is not kept.
    BodyTimeoutError
    BadRequestError
        It is not JSON, or JSON that cannot be served (see :func:`parse_json_object`).
    ClientDisconnectedError
        The client left before its body was complete.
    """
    reading = _read(request.scope, request.receive, config.max_body_bytes)
    try:
        body = await asyncio.wait_for(reading, config.body_timeout)
    except asyncio.TimeoutError as error:
        raise BodyTimeoutError(f"The body did not arrive within {config.body_timeout:g} seconds.") from error
    return parse_json_object(body, max_depth=config.max_json_depth)


def parse_json_object(body: bytes, *, max_depth: int) -> dict[str, Any]:
    """Parse a body that must be one JSON object; keys keep their order.

    Stricter than :func:`json.loads`: NaN, Infinity, numbers beyond a double, duplicate keys, lone surrogates and
    nesting beyond ``max_depth`` are :class:`BadRequestError`.
    """
    not_numbers: list[_NotANumber] = []

    def not_a_number(text: str) -> _NotANumber:
        not_numbers.append(_NotANumber(text))
        return not_numbers[-1]

    def finite_float(text: str) -> float | _NotANumber:
        number = float(text)
        return not_a_number(text) if math.isinf(number) else number

    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequestError(f"The body is not valid UTF-8 (byte {error.start}).", code="invalid_utf8") from error
    try:
        value = json.loads(text, parse_constant=not_a_number, parse_float=finite_float, object_pairs_hook=_unique_keys)
    except RecursionError as error:
        raise _too_deep(max_depth) from error
    except json.JSONDecodeError as error:
        reason = error.msg.removesuffix(" at")
        raise BadRequestError(
            f"The body is not valid JSON: {reason} at line {error.lineno}, column {error.colno}.",
            code="invalid_json",
        ) from error
    except ValueError as error:  # an integer of thousands of digits, which Python refuses to convert
        raise BadRequestError("The body has an integer with too many digits.", code="invalid_json") from error
    if not isinstance(value, dict):
        raise BadRequestError("The body must be a JSON object.", code="invalid_json")
    if body.count(b"[") + body.count(b"{") > max_depth:
        _check_depth(value, max_depth)
    if b"\\ud" in body or b"\\uD" in body:
        _check_surrogates(value)
    if not_numbers:
        _check_numbers(value)
    return value


async def _read(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    announced = _content_length(scope)
    if announced is not None and announced > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _content_length(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else None
    return None


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The body is larger than the limit of {max_bytes} bytes.")


def _too_deep(max_depth: int) -> BadRequestError:
    return BadRequestError(f"The body is nested deeper than {max_depth} levels.", code="invalid_json")


@dataclass(frozen=True)
class _NotANumber:
    """Stands where NaN, an infinity or a number beyond a double was written, until its field is known."""

    text: str


def _check_numbers(value: dict[str, Any]) -> None:
    for path, node in _walk(value):
        if isinstance(node, _NotANumber):
            reason = "too large" if node.text[-1].isdigit() else "not a JSON number"
            message = f"The body is not valid JSON: {node.text[:40]} in '{path[:100]}' is {reason}."
            raise BadRequestError(message, param=path[:100], code="invalid_json")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                shown = key[:100].encode("utf-8", "backslashreplace").decode()
                raise BadRequestError(f"The key {shown!r} occurs twice in one object.", param=shown)
            seen.add(key)
    return value


def _check_depth(value: dict[str, Any], max_depth: int) -> None:
    level: list[Any] = [value]
    for _ in range(max_depth):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise _too_deep(max_depth)


def _check_surrogates(value: dict[str, Any]) -> None:
    """An escape such as ``\\ud800`` parses, but the string it gives cannot be encoded again."""
    for path, node in _walk(value):
        if isinstance(node, str):
            _check_string(path, node)
        elif isinstance(node, dict):
            for key in node:
                _check_string(path, key)


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Every value inside ``value``, itself included, with its path."""
    pending: list[tuple[str, Any]] = [("", value)]
    while pending:
        path, node = pending.pop()
        yield path, node
        if isinstance(node, dict):
            pending.extend((f"{path}.{key}" if path else key, child) for key, child in node.items())
        elif isinstance(node, list):
            pending.extend((f"{path}[{index}]", child) for index, child in enumerate(node))


def _check_string(path: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        shown = path or text.encode("utf-8", "backslashreplace").decode()
        raise BadRequestError(
            f"{shown!r} holds a lone surrogate (\\u{ord(text[error.start]):04x}), which is not Unicode text.",
            param=shown,
        ) from error

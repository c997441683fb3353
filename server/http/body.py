"""Reading a JSON body: bounded while it arrives, and nothing let through that JSON or Unicode does not allow."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive, Scope

from server.config import HttpConfig
from server.errors import BadRequestError, BodyTimeoutError, BodyTooLargeError, ClientDisconnectedError
from server.validation import RequestModel, validate_request

_Model = TypeVar("_Model", bound=RequestModel)
_SHOWN = 100
"""Characters of a path or key that an error repeats."""
_MAX_LENGTH_DIGITS = 19
_LONG_BODY = 64 * 1024
"""Bytes; a longer one is read in a thread, beside which other answers go on: a megabyte may take a second."""
_MAX_KEYS = 10_000
"""Of one object: each unknown one is an error of its own until the first is told, and a million take seconds."""


async def read_request(model: type[_Model], request: Request, config: HttpConfig) -> _Model:
    """The request's body, which must be one JSON object that fits ``model``.

    Raises
    ------
    BodyTooLargeError
        As soon as more than ``max_body_bytes`` are announced or have come; the rest is not kept.
    BodyTimeoutError
    BadRequestError
        It is not JSON, JSON that cannot be served (see :func:`parse_json_object`), or does not fit (see
        :func:`~server.validation.validate_request`).
    ClientDisconnectedError
        The client left before its body was complete.
    """
    reading = _read(request.scope, request.receive, config.max_body_bytes)
    try:
        body = await asyncio.wait_for(reading, config.body_timeout)
    except asyncio.TimeoutError as error:
        raise BodyTimeoutError(f"The body did not arrive within {config.body_timeout:g} seconds.") from error
    if len(body) < _LONG_BODY:
        return _checked(model, body, config)
    return await asyncio.to_thread(_checked, model, body, config)


def parse_json_object(body: bytes, *, max_depth: int) -> dict[str, Any]:
    """Parse a body that must be one JSON object; keys keep their order.

    Stricter than :func:`json.loads`: NaN, Infinity, numbers beyond a double, duplicate keys, objects of more than
    10,000 keys, lone surrogates and nesting beyond ``max_depth`` are :class:`BadRequestError`.
    """
    not_numbers: list[_NotANumber] = []  # the first; all others are it again, since one is enough to refuse the body

    def not_a_number(text: str) -> _NotANumber:
        if not not_numbers:
            not_numbers.append(_NotANumber(text))
        return not_numbers[0]

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
    if not_numbers:
        _refuse_number(value, not_numbers[0])
    if b"\\ud" in body or b"\\uD" in body:
        _check_surrogates(value)
    return value


def _checked(model: type[_Model], body: bytes, config: HttpConfig) -> _Model:
    return validate_request(model, parse_json_object(body, max_depth=config.max_json_depth))


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
            if len(value) > _MAX_LENGTH_DIGITS:
                raise BadRequestError("Content-Length has too many digits.", code="invalid_http")
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


def _refuse_number(value: dict[str, Any], number: _NotANumber) -> None:
    path = _find(value, lambda _, node: node is number)
    reason = "too large" if number.text[-1].isdigit() else "not a JSON number"
    message = f"The body is not valid JSON: {number.text[:40]} in '{path}' is {reason}."
    raise BadRequestError(message, param=path, code="invalid_json")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _MAX_KEYS:
        raise BadRequestError(f"The body has an object of more than {_MAX_KEYS} keys.", code="invalid_json")
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                shown = _printable(key[:_SHOWN])
                raise BadRequestError(f"The key '{shown}' occurs twice in one object.", param=shown)
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
    if not _has_surrogate(json.dumps(value, ensure_ascii=False)):
        return
    path = _find(
        value,
        lambda step, node: (type(node) is str and _has_surrogate(node)) or (type(step) is str and _has_surrogate(step)),
    )
    raise BadRequestError(f"'{path}' holds a lone surrogate, which is not Unicode text.", param=path)


def _has_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _find(value: dict[str, Any], is_wanted: Callable[[str | int, Any], bool]) -> str | None:
    """Path of the first value, in the order of the body, that with its key or index ``is_wanted``."""
    steps: list[str | int] = [""]
    pending = [_children(value)]  # as deep as the body at most: its siblings are never held together
    while pending:
        for step, child in pending[-1]:
            steps[-1] = step
            if is_wanted(step, child):
                return _shown_path(steps)
            if isinstance(child, (dict, list)):
                pending.append(_children(child))
                steps.append("")
                break
        else:
            pending.pop()
            steps.pop()
    return None


def _children(node: dict[str, Any] | list[Any]) -> Iterator[tuple[str | int, Any]]:
    return iter(node.items() if isinstance(node, dict) else enumerate(node))


def _shown_path(steps: Sequence[str | int]) -> str:
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step[:_SHOWN]}" if path else step[:_SHOWN]
        if len(path) > _SHOWN:
            break
    return _printable(path[:_SHOWN])


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()

"""JSON while it is still being written."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

_OUTSIDE = re.compile(r'[{}\[\]"]')
_INSIDE = re.compile(r'["\\]')
_MAX_DEPTH = 200
"""Of JSON inside a text. A template writes it out again, deeper in the stack than where it is parsed."""


class JsonEnd:
    """Finds where an object or array ends, fed piece by piece. It weighs brackets and strings, nothing else."""

    __slots__ = ("_depth", "_in_string", "_is_escaped")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def feed(self, text: str, position: int = 0) -> int:
        """Read on from ``position``; the position just behind the end, or -1 when it has not come."""
        size = len(text)
        while position < size:
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            match = (_INSIDE if self._in_string else _OUTSIDE).search(text, position)
            if match is None:
                return -1
            position = match.end()
            character = match.group()
            if character == "\\":
                self._is_escaped = True
            elif character == '"':
                self._in_string = not self._in_string
            elif character in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth <= 0:
                    return position
        return -1


def strict_loads(text: str) -> Any:
    """Parse JSON as the standard has it.

    Raises
    ------
    ValueError
        Also for what could not be written out again: NaN, numbers beyond a double, lone surrogates, and nesting deeper
        than 200 levels.
    """
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        if text.count("{") + text.count("[") > _MAX_DEPTH:
            _check_depth(value)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if "\\ud" in text or "\\uD" in text:
        dump(value)
    return value


def is_json(text: str) -> bool:
    """Whether :func:`strict_loads` takes it."""
    try:
        strict_loads(text)
    except ValueError:
        return False
    return True


def dump(value: Any) -> str:
    """JSON text that any parser takes; raises ``ValueError`` for what is none, a lone surrogate among it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()  # UnicodeEncodeError is a ValueError
    return text


def escaped(text: str) -> str:
    """``text`` as it stands inside a JSON string; pieces may be escaped one by one."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def held_length(text: str, marker: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``marker``, but not all of it."""
    position = text.find(marker[0], max(0, len(text) - len(marker) + 1))
    while position >= 0:
        if marker.startswith(text[position:]):
            return len(text) - position
        position = text.find(marker[0], position + 1)
    return 0


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")


def _children(node: Any) -> list[Any]:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [child for child in children if isinstance(child, (dict, list))]

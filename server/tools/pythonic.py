"""Calls written as Python: ``[name(key=value, ...), other()]``, the whole answer a list of calls.

Llama 3.2 and Llama 4 are asked for it, and others trained on the same data. Values are Python literals; JSON's
spellings of true, false and null are understood as well. Source: Meta's prompt format pages for Llama 3.2 and Llama 4.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from server.tools.events import CallArguments, CallBegin, CallEnd
from server.tools.json_text import dump, strict_loads
from server.tools.parser import Format, ToolCallParser, UnsupportedToolError
from server.tools.properties import Property, split_parameters

_WORDS = r"\s*[^\s\[<][\s\S]*"
"""What is no call: it begins with anything but a bracket or a tag."""
_NAME = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*\(")
_NAME_BEGINNING = re.compile(r"\s*([A-Za-z_][\w.-]*\s*)?")
_KEY = re.compile(r"\s*([A-Za-z_]\w*)\s*=")
_MAX_OPTIONAL = 64


class PythonicParser(ToolCallParser):
    name = "pythonic"
    separator = ", "

    def __init__(self, tools: Mapping[str, dict[str, Any]], *, is_constrained: bool) -> None:
        super().__init__(tools, is_constrained=is_constrained)
        self._state = "start"
        self._num_arguments = 0
        self._literal = _LiteralEnd()
        self._num_seen = 0

    @classmethod
    def recognises(cls, template: str) -> bool:
        return "func_name1(params_name1=" in template

    @classmethod
    def call_tag(cls, name: str, parameters: dict[str, Any]) -> Format:
        properties = split_parameters(name, parameters, in_format=cls.name)
        content = _arguments_format(name, properties)
        return {"type": "tag", "begin": f"{name}(", "content": content, "end": ")"}

    @classmethod
    def required_format(cls, tags: Sequence[Format], *, is_parallel: bool) -> Format:
        # Tags of custom tools stand alone, those of functions in a list.
        listed = [tag for tag in tags if not tag["begin"].startswith("<")]
        alone = [tag for tag in tags if tag["begin"].startswith("<")]
        calls = super().required_format(listed, is_parallel=is_parallel)
        whole = _sequence(_constant("["), calls, _constant("]"))
        if not alone:
            return whole
        others = {**calls, "tags": alone, "separator": "\n"}
        return {"type": "or", "elements": [whole, others] if listed else [others]}

    @classmethod
    def optional_format(cls, tags: Sequence[Format], *, is_parallel: bool) -> Format:
        calls = cls.required_format(tags, is_parallel=is_parallel)
        return {"type": "or", "elements": [calls, {"type": "regex", "pattern": _WORDS}]}

    def _step(self) -> bool:
        match self._state:
            case "start":
                return self._step_start()
            case "list":
                return self._step_whole()
            case "name":
                return self._step_name()
            case "key":
                return self._step_key()
            case "value":
                return self._step_value()
            case "between":
                return self._step_between()
            case _:
                self._text(self._take(len(self._buffer)))
                return False

    def _step_start(self) -> bool:
        """A list of calls is one from its first name and bracket on."""
        rest = self._buffer.lstrip()
        if not rest:
            return False
        name = _NAME.match(rest, 1) if rest[0] == "[" else None
        if name is not None and name[1] in self.tools:
            self._literal, self._num_seen = _LiteralEnd(), 0
            self._buffer = rest[1:] if self.is_constrained else rest
            self._state = "name" if self.is_constrained else "list"
            return True
        if rest[0] == "[" and name is None and _NAME_BEGINNING.fullmatch(rest, 1):
            return False
        self._state = "text"
        return True

    def _step_whole(self) -> bool:
        """Unconstrained: read the list again as if it were constrained, once all of it is there."""
        end = self._literal.feed(self._buffer, self._num_seen)
        self._num_seen = len(self._buffer)
        if end < 0:
            return False
        reader = PythonicParser(self.tools, is_constrained=True)
        events = reader.add(self._buffer[:end])
        if reader._state == "after" and not reader._buffer and isinstance(events[-1], CallEnd):
            self._take(end)
            self._events += events
        self._state = "text"
        return True

    def _step_name(self) -> bool:
        match = _NAME.match(self._buffer)
        if match is None:
            if not _NAME_BEGINNING.fullmatch(self._buffer):
                self._state = "text"
                return True
            return False
        if match[1] not in self.tools:
            self._state = "text"
            return True
        self._take(match.end())
        self._events.append(CallBegin(match[1]))
        self._num_arguments = 0
        self._state = "key"
        return True

    def _step_key(self) -> bool:
        rest = self._buffer.lstrip()
        if not rest:
            return False
        if rest[0] == ")":
            self._buffer = rest[1:]
            self._events += [CallArguments("}" if self._num_arguments else "{}"), CallEnd()]
            self._state = "between"
            return True
        match = _KEY.match(rest)
        if match is None:
            if re.fullmatch(r"[A-Za-z_]\w*\s*", rest):
                return False
            self._state = "text"  # the call stays incomplete
            return True
        self._buffer = rest[match.end() :]
        self._key = match[1]
        self._literal, self._num_seen = _LiteralEnd(), 0
        self._state = "value"
        return True

    def _step_value(self) -> bool:
        end = self._literal.feed(self._buffer, self._num_seen, stops_before=",)")
        self._num_seen = len(self._buffer)
        if end < 0:
            return False
        value = _as_json(self._buffer[:end])
        if value is None:
            self._state = "text"
            return True
        self._take(end)
        opening = "{" if self._num_arguments == 0 else ", "
        self._num_arguments += 1
        self._events.append(CallArguments(f"{opening}{dump(self._key)}: {value}"))
        if self._buffer[0] == ",":
            self._take(1)
        self._state = "key"
        return True

    def _step_between(self) -> bool:
        rest = self._buffer.lstrip()
        if not rest:
            return False
        following = {",": "name", "]": "after"}.get(rest[0], "text")
        if following != "text":
            self._buffer = rest[1:]
        self._state = following
        return True

    def _end(self) -> None:
        if self._state in ("start", "list", "text", "after"):
            self._text(self._take(len(self._buffer)))


class _LiteralEnd:
    """Finds where a bracketed expression ends, or the comma or bracket behind an argument, fed piece by piece."""

    def __init__(self) -> None:
        self._depth = 0
        self._quote = ""
        self._is_escaped = False

    def feed(self, text: str, position: int, *, stops_before: str = "") -> int:
        """The position behind the closing bracket, or that of one of ``stops_before``; -1 when it has not come."""
        while position < len(text):
            character = text[position]
            if self._is_escaped:
                self._is_escaped = False
            elif self._quote:
                if character == "\\":
                    self._is_escaped = True
                elif character == self._quote:
                    self._quote = ""
            elif character in "'\"":
                self._quote = character
            elif self._depth == 0 and character in stops_before:
                return position
            elif character in "([{":
                self._depth += 1
            elif character in ")]}":
                self._depth -= 1
                if self._depth == 0 and not stops_before:
                    return position + 1
            position += 1
        return -1


def _as_json(text: str) -> str | None:
    """A literal of JSON or Python as JSON text."""
    stripped = text.strip()
    try:
        strict_loads(stripped)
    except ValueError:
        pass
    else:
        return stripped
    try:
        return dump(_plain(ast.literal_eval(stripped)))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("keys of JSON objects are strings")
        return {key: _plain(one) for key, one in value.items()}
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise TypeError(f"{type(value).__name__} is no JSON")


def _arguments_format(tool: str, properties: list[Property]) -> Format:
    for one in properties:
        if not re.fullmatch(r"[A-Za-z_]\w*", one.name):
            raise UnsupportedToolError(f"the parameter {one.name!r} of tool {tool!r} is no Python name")
    required = [one for one in properties if one.is_required]
    optional = [one for one in properties if not one.is_required]
    if len(optional) > _MAX_OPTIONAL:
        raise UnsupportedToolError(f"tool {tool!r} has more than {_MAX_OPTIONAL} optional parameters")
    if required:
        first, *others = required
        parts = [_argument(first), *(_argument(one, ", ") for one in others)]
        return _sequence(*parts, *(_optional(_argument(one, ", ")) for one in optional))
    # Whichever comes first has no comma before it.
    beginnings = [
        _sequence(_argument(one), *(_optional(_argument(other, ", ")) for other in optional[index + 1 :]))
        for index, one in enumerate(optional)
    ]
    return {"type": "or", "elements": [_constant(""), *beginnings]} if beginnings else _constant("")


def _argument(one: Property, comma: str = "") -> Format:
    return _sequence(_constant(f"{comma}{one.name}="), {"type": "json_schema", "json_schema": one.schema})


def _optional(content: Format) -> Format:
    return {"type": "optional", "content": content}


def _sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def _constant(value: str) -> Format:
    return {"type": "const_string", "value": value}

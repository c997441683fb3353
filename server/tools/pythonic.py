"""Calls written as Python: ``[name(key=value, ...), other()]``, the whole answer a list of calls.

Llama 3.2 is asked for it, and others trained on the same data. Values are Python literals; JSON's spellings of true,
false and null are understood as well, and a grammar writes nothing but JSON. Source: Meta's prompt format page for
Llama 3.2.

Where a schema says more than its parameters one by one can be held to, a call is ``name(**{...})``: one JSON object.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from server.answer.events import CallArguments, CallEnd, collect
from server.tools.forms import Format, calls_in_a_row, constant, either, optional, sequence, tag
from server.tools.json_text import dump, is_json
from server.tools.parser import ToolCallParser, json_arguments
from server.tools.properties import Property, split_parameters

_WORDS = r"\s*[^\s\[<][\s\S]*"
"""What is no call: it begins with anything but a bracket or a tag."""
_NAME = re.compile(r"\s*([\w.-]+)\s*\(")
_NAME_BEGINNING = re.compile(r"\s*([\w.-]+\s*)?")
_KEY = re.compile(r"\s*([A-Za-z_]\w*)\s*=")
_MAX_OPTIONAL = 64


class PythonicParser(ToolCallParser):
    name = "pythonic"
    separator = ", "

    def __init__(self, tools: Mapping[str, dict[str, Any]], *, is_constrained: bool) -> None:
        super().__init__(tools, is_constrained=is_constrained)
        self._is_json_certain = is_constrained
        """Whether values can be nothing but JSON, and so be shown before they are complete."""
        self._num_arguments = 0
        self._literal = _LiteralEnd()
        self._num_seen = 0

    @classmethod
    def recognises(cls, template: str) -> bool:
        return "func_name1(params_name1=" in template

    @classmethod
    def call_format(cls, name: str, parameters: dict[str, Any], origin: str) -> Format:
        properties = split_parameters(parameters)
        if properties is None or not _are_keywords(properties):
            return tag(f"{name}(**", json_arguments(parameters, origin), ")")
        return tag(f"{name}(", _arguments_format(properties, origin), ")")

    @classmethod
    def required_format(cls, functions: Sequence[Format], customs: Sequence[Format], most: int) -> Format:
        # Calls of functions stand in a list, those of custom tools alone.
        forms = []
        if functions:
            forms.append(sequence(constant("["), calls_in_a_row(functions, cls.separator, most), constant("]")))
        if customs:
            forms.append(calls_in_a_row(customs, "\n", most))
        return either(forms)

    @classmethod
    def optional_format(cls, functions: Sequence[Format], customs: Sequence[Format], most: int) -> Format:
        words = {"type": "regex", "pattern": _WORDS}
        return either([cls.required_format(functions, customs, most), words])

    def _start(self) -> bool:
        """A list of calls is one from its first name and bracket on."""
        rest = self._buffer.lstrip()
        if not rest:
            return False
        name = _NAME.match(rest, 1) if rest[0] == "[" else None
        if name is not None and name[1] in self.tools:
            self._begin_literal()
            if self.is_constrained:
                self._buffer = rest[1:]
            self._state = self._name if self.is_constrained else self._list
            return True
        if rest[0] == "[" and name is None and _NAME_BEGINNING.fullmatch(rest, 1):
            return False
        self._state = self._words
        return True

    def _list(self) -> bool:
        """Unconstrained: read the list again as if it were constrained, once all of it is there."""
        end = self._literal.feed(self._buffer, self._num_seen)
        self._num_seen = len(self._buffer)
        if end < 0:
            return False
        reader = PythonicParser(self.tools, is_constrained=True)
        reader._is_json_certain = False
        events = reader.add(self._buffer[:end])
        is_whole = reader._state == reader._after and not reader._buffer
        if is_whole and all(is_json(call.arguments) for call in collect(events).calls):
            self._take(end)
            self._events += events
        self._state = self._words
        return True

    def _name(self) -> bool:
        match = _NAME.match(self._buffer)
        if match is None and _NAME_BEGINNING.fullmatch(self._buffer):
            return False
        if match is None or match[1] not in self.tools:
            self._state = self._words
            return True
        self._take(match.end())
        self._begin_call(match[1])
        self._num_arguments = 0
        self._state = self._key
        return True

    def _key(self) -> bool:
        rest = self._buffer.lstrip()
        if not rest:
            return False
        if rest[0] == ")":
            self._buffer = rest[1:]
            self._events += [CallArguments("}" if self._num_arguments else "{}"), CallEnd()]
            self._state = self._between
            return True
        if self._num_arguments == 0 and rest[:3] in ("*", "**"):
            return False
        if self._num_arguments == 0 and rest.startswith("**{"):
            self._buffer = rest[2:]
            self._state = self._arguments
            return True
        match = _KEY.match(rest)
        if match is None:
            if re.fullmatch(r"[A-Za-z_]\w*\s*", rest):
                return False
            self._state = self._words  # the call stays incomplete
            return True
        self._buffer = rest[match.end() :]
        opening = "{" if self._num_arguments == 0 else ", "
        self._num_arguments += 1
        self._events.append(CallArguments(f"{opening}{dump(match[1])}: "))
        self._begin_literal()
        self._state = self._value
        return True

    def _behind_arguments(self) -> bool:
        return self._expect(")", self._between)

    def _value(self) -> bool:
        end = self._literal.feed(self._buffer, self._num_seen, stops_before=",)")
        self._num_seen = len(self._buffer)
        if end < 0:
            if self._is_json_certain:
                self._show_value()
            return False
        value = self._take(end)
        shown = value if self._is_json_certain else _as_json(value)
        if shown is None:
            self._buffer = value + self._buffer
            self._state = self._words
            return True
        if shown:
            self._events.append(CallArguments(shown))
        if self._buffer[0] == ",":
            self._take(1)
        self._state = self._key
        return True

    def _show_value(self) -> None:
        if self._buffer:
            self._events.append(CallArguments(self._take(len(self._buffer))))
        self._num_seen = 0

    def _between(self) -> bool:
        rest = self._buffer.lstrip()
        if not rest:
            return False
        following = {",": self._name, "]": self._after}.get(rest[0])
        if following is not None:
            self._buffer = rest[1:]
        self._state = following or self._words
        return True

    def _after(self) -> bool:
        return self._words()

    def _begin_literal(self) -> None:
        self._literal, self._num_seen = _LiteralEnd(), 0

    def _end(self) -> None:
        if self._state in (self._start, self._list, self._words, self._after):
            self._words()


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
    if is_json(stripped):
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


def _are_keywords(properties: Sequence[Property]) -> bool:
    """Whether every parameter can be written as a keyword argument, and not too many may be left out."""
    num_optional = sum(not one.is_required for one in properties)
    return num_optional <= _MAX_OPTIONAL and all(re.fullmatch(r"[A-Za-z_]\w*", one.name) for one in properties)


def _arguments_format(properties: Sequence[Property], origin: str) -> Format:
    def argument(one: Property, comma: str = ", ") -> Format:
        return sequence(constant(f"{comma}{one.name}="), one.json_format(origin))

    required = [one for one in properties if one.is_required]
    later = [one for one in properties if not one.is_required]
    if required:
        first, *others = required
        parts = [argument(first, ""), *map(argument, others)]
        return sequence(*parts, *(optional(argument(one)) for one in later))
    # Whichever comes first has no comma before it.
    beginnings = [
        sequence(argument(one, ""), *(optional(argument(other)) for other in later[index + 1 :]))
        for index, one in enumerate(later)
    ]
    return either([constant(""), *beginnings])

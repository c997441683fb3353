"""Qwen3-Coder and Qwen 3.5: a tag for the function and one for every parameter.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    value
    </parameter>
    </function>
    </tool_call>

Strings stand as they are, everything else as JSON; a string that a pattern, length or format restricts is written as
JSON too, in quotes. Source: the models' chat templates.

Where a schema says more than its parameters one by one can be held to, all arguments are one JSON object between the
tags of the function: a form of our own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from server.answer.events import CallArguments, CallBegin, CallEnd, Event, collect
from server.tools.forms import ANY_TEXT, Format, constant, either, optional, sequence, tag
from server.tools.hermes import CLOSE, OPEN, tagged_calls_among_words
from server.tools.json_text import dump, escaped, held_length, is_json, strict_loads
from server.tools.parser import ToolCallParser, json_arguments
from server.tools.properties import Property, declared_properties, split_parameters

_PARAMETER_END = "</parameter>"
_FUNCTION_END = "</function>"
_FUNCTION = re.compile(r"<function=([^>\s]+)>\s*")
_PARAMETER = re.compile(r"<parameter=([^>]+)>\n?")
_JSON_PIECE = re.compile(rf'\\.|"|{_PARAMETER_END}', re.DOTALL)
_TEXT: Format = {**ANY_TEXT, "excludes": [_PARAMETER_END]}
"""A text in which the end tag is the end."""


class Qwen3CoderParser(ToolCallParser):
    name = "qwen3_coder"

    def __init__(self, tools: Mapping[str, dict[str, Any]], *, is_constrained: bool) -> None:
        super().__init__(tools, is_constrained=is_constrained)
        self._properties: dict[str, Property] = {}
        self._is_json_certain = is_constrained
        """Whether values that are no plain text can be nothing but JSON."""
        self._to_json: Callable[[str], str] = escaped
        self._quote = ""
        self._is_in_string = False
        self._num_parameters = 0
        self._num_seen = 0

    @classmethod
    def recognises(cls, template: str) -> bool:
        return "<function=" in template and "<parameter=" in template

    @classmethod
    def call_format(cls, name: str, parameters: dict[str, Any], origin: str) -> Format:
        properties = split_parameters(parameters)
        if properties is None or any(not re.fullmatch(r"[^>\n]+", one.name) for one in properties):
            parts = [json_arguments(parameters, origin), constant("\n")]
        else:
            parts = [_parameter_format(one, origin) for one in properties]
        content = sequence(*parts, constant(f"{_FUNCTION_END}\n"))
        return tag(f"{OPEN}\n<function={name}>\n", content, CLOSE)

    @classmethod
    def optional_format(cls, functions: Sequence[Format], customs: Sequence[Format], most: int) -> Format:
        return tagged_calls_among_words(functions, customs, most)

    def _start(self) -> bool:
        if not self._text_until(OPEN):
            return False
        self._state = self._open if self.is_constrained else self._whole
        self._num_seen = 0
        return True

    def _whole(self) -> bool:
        """Unconstrained: read the call again as if it were constrained, once all of it is there."""
        position = self._buffer.find(CLOSE, max(len(OPEN), self._num_seen - len(CLOSE)))
        self._num_seen = len(self._buffer)
        if position < 0:
            return False
        call = self._buffer[: position + len(CLOSE)]
        events = self._read_whole(call, is_json_certain=True)
        if not self._has_declared_types(events):
            events = self._read_whole(call, is_json_certain=False) or events
        if events:
            self._take(len(call))
            self._events += events
        else:
            self._text(self._take(len(OPEN)))
        self._state = self._start
        return True

    def _read_whole(self, call: str, *, is_json_certain: bool) -> list[Event]:
        """The events of a complete call; empty where it is none, or its arguments are no JSON."""
        reader = Qwen3CoderParser(self.tools, is_constrained=True)
        reader._is_json_certain = is_json_certain
        events = reader.add(call)
        return events if reader._state == reader._start and not reader._buffer and _is_call(events) else []

    def _has_declared_types(self, events: Sequence[Event]) -> bool:
        calls = collect(events).calls
        declared = {one.name: one for call in calls for one in declared_properties(self.tools[call.name])}
        values = {name: value for call in calls for name, value in strict_loads(call.arguments).items()}
        return bool(calls) and all(one.may_be(values[name]) for name, one in declared.items() if name in values)

    def _open(self) -> bool:
        rest = self._buffer[len(OPEN) :].lstrip()
        match = _FUNCTION.match(rest)
        if match is not None and match.end() < len(rest) and match[1] in self.tools:
            self._buffer = rest[match.end() :]
            self._begin_call(match[1])
            self._properties = {one.name: one for one in declared_properties(self.tools[match[1]])}
            self._num_parameters = 0
            self._state = self._arguments if self._buffer[0] == "{" else self._parameters
            return True
        opening = "<function="
        is_undecided = opening.startswith(rest) or (rest.startswith(opening) and ">" not in rest) or match is not None
        if is_undecided and (match is None or match[1] in self.tools):
            return False
        self._text(self._take(len(OPEN)))
        self._state = self._start
        return True

    def _behind_arguments(self) -> bool:
        return self._expect(_FUNCTION_END, self._call_close)

    def _parameters(self) -> bool:
        rest = self._buffer.lstrip()
        match = _PARAMETER.match(rest)
        if match is not None and match.end() < len(rest):
            self._begin_value(match[1])
            self._buffer = rest[match.end() :]
            return True
        if rest.startswith(_FUNCTION_END):
            self._buffer = rest[len(_FUNCTION_END) :]
            self._events += [CallArguments("}" if self._num_parameters else "{}"), CallEnd()]
            self._state = self._call_close
            return True
        if match is not None or _FUNCTION_END.startswith(rest) or _may_begin_parameter(rest):
            return False
        self._state = self._start  # the call stays incomplete
        return True

    def _begin_value(self, name: str) -> None:
        opening = ("{" if self._num_parameters == 0 else ", ") + dump(name) + ": "
        self._num_parameters += 1
        one = self._properties.get(name)
        self._num_seen, self._is_in_string = 0, False
        if one is None or _is_text(one):
            self._to_json, self._quote = escaped, '"'
        else:
            # Under a grammar it is JSON already.
            self._to_json, self._quote = (str if self._is_json_certain else one.as_json), ""
        self._events.append(CallArguments(opening + self._quote))
        self._state = self._value

    def _value(self) -> bool:
        position = self._value_end()
        if position < 0:
            if self._to_json in (escaped, str):  # anything else needs the whole value
                held = held_length(self._buffer, "\n" + _PARAMETER_END) or held_length(self._buffer, _PARAMETER_END)
                size = len(self._buffer) - (held or self._buffer.endswith("\\"))
                self._show(self._take(size))
                self._num_seen = max(0, self._num_seen - size)
            return False
        self._show(self._take(position).removesuffix("\n"))
        if self._quote:
            self._events.append(CallArguments(self._quote))
        self._take(len(_PARAMETER_END))
        self._state = self._parameters
        return True

    def _value_end(self) -> int:
        """Where the end tag stands, or -1; inside a string of JSON it is part of the string."""
        if self._to_json is not str:
            return self._buffer.find(_PARAMETER_END)
        for match in _JSON_PIECE.finditer(self._buffer, self._num_seen):
            if match[0] == '"':
                self._is_in_string = not self._is_in_string
            elif match[0] == _PARAMETER_END and not self._is_in_string:
                return match.start()
            self._num_seen = match.end()
        return -1

    def _show(self, text: str) -> None:
        shown = self._to_json(text)
        if shown:
            self._events.append(CallArguments(shown))

    def _call_close(self) -> bool:
        return self._expect(CLOSE, self._start)

    def _end(self) -> None:
        if self._state in (self._start, self._open, self._whole):
            self._words_unless_cut_call()
        elif self._state == self._value:
            self._show(self._take(len(self._buffer)))


def _parameter_format(one: Property, origin: str) -> Format:
    content = one.json_format(origin)
    if _is_text(one):
        content = either([constant(choice) for choice in one.choices] or [_TEXT])
    parameter = tag(f"<parameter={one.name}>\n", content, f"\n{_PARAMETER_END}\n")
    return parameter if one.is_required else optional(parameter)


def _is_text(one: Property) -> bool:
    """Whether the value stands as it is."""
    return one.is_plain_text and not any(_PARAMETER_END in choice for choice in one.choices)


def _is_call(events: Sequence[Event]) -> bool:
    """Whether these are the events of exactly one complete call, and its arguments JSON."""
    if len(events) < 2 or not isinstance(events[0], CallBegin) or not isinstance(events[-1], CallEnd):
        return False
    arguments = ""
    for event in events[1:-1]:
        if not isinstance(event, CallArguments):
            return False
        arguments += event.text
    return is_json(arguments)


def _may_begin_parameter(rest: str) -> bool:
    opening = "<parameter="
    return opening.startswith(rest) or (rest.startswith(opening) and ">" not in rest)

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
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from server.tools.events import CallArguments, CallBegin, CallEnd, Event
from server.tools.json_text import dump, escaped, held_length, strict_loads
from server.tools.parser import Format, ToolCallParser, UnsupportedToolError
from server.tools.properties import Property, declared_properties, split_parameters

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_PARAMETER_END = "</parameter>"
_FUNCTION_END = "</function>"
_FUNCTION = re.compile(r"<function=([^>\s]+)>\s*")
_PARAMETER = re.compile(r"<parameter=([^>]+)>\n?")


class Qwen3CoderParser(ToolCallParser):
    name = "qwen3_coder"

    def __init__(self, tools: Mapping[str, dict[str, Any]], *, is_constrained: bool) -> None:
        super().__init__(tools, is_constrained=is_constrained)
        self._properties: dict[str, Property] = {}
        self._state = "text"
        self._num_parameters = 0
        self._num_seen = 0

    @classmethod
    def recognises(cls, template: str) -> bool:
        return "<function=" in template and "<parameter=" in template

    @classmethod
    def call_tag(cls, name: str, parameters: dict[str, Any]) -> Format:
        elements: list[Format] = [
            _parameter_format(one) for one in split_parameters(name, parameters, in_format=cls.name)
        ]
        elements.append({"type": "const_string", "value": f"{_FUNCTION_END}\n"})
        return {
            "type": "tag",
            "begin": f"{_OPEN}\n<function={name}>\n",
            "content": {"type": "sequence", "elements": elements},
            "end": _CLOSE,
        }

    @classmethod
    def optional_format(cls, tags: Sequence[Format], *, is_parallel: bool) -> Format:
        return {
            "type": "triggered_tags",
            "triggers": [_OPEN],
            "tags": list(tags),
            "stop_after_first": not is_parallel,
        }

    def _step(self) -> bool:
        match self._state:
            case "text":
                if not self._text_until(_OPEN):
                    return False
                self._state = "open"
                self._num_seen = 0
                return True
            case "open":
                return self._step_open() if self.is_constrained else self._step_whole()
            case "parameters":
                return self._step_parameters()
            case "value" | "string":
                return self._step_value()
            case _:
                return self._step_close()

    def _step_whole(self) -> bool:
        """Unconstrained: read the call again as if it were constrained, once all of it is there."""
        position = self._buffer.find(_CLOSE, max(len(_OPEN), self._num_seen - len(_CLOSE)))
        self._num_seen = len(self._buffer)
        if position < 0:
            return False
        reader = Qwen3CoderParser(self.tools, is_constrained=True)
        events = reader.add(self._buffer[: position + len(_CLOSE)])
        if reader._state == "text" and not reader._buffer and _is_call(events):
            self._take(position + len(_CLOSE))
            self._events += events
        else:
            self._text(self._take(len(_OPEN)))
        self._state = "text"
        return True

    def _step_open(self) -> bool:
        rest = self._buffer[len(_OPEN) :].lstrip()
        match = _FUNCTION.match(rest)
        if match is not None and match.end() < len(rest) and match[1] in self.tools:
            self._buffer = rest[match.end() :]
            self._events.append(CallBegin(match[1]))
            self._properties = {one.name: one for one in declared_properties(self.tools[match[1]])}
            self._num_parameters = 0
            self._state = "parameters"
            return True
        opening = "<function="
        is_undecided = opening.startswith(rest) or (rest.startswith(opening) and ">" not in rest) or match is not None
        if is_undecided and (match is None or match[1] in self.tools):
            return False
        self._text(self._take(len(_OPEN)))
        self._state = "text"
        return True

    def _step_parameters(self) -> bool:
        rest = self._buffer.lstrip()
        match = _PARAMETER.match(rest)
        if match is not None and match.end() < len(rest):
            self._begin_value(match[1])
            self._buffer = rest[match.end() :]
            return True
        if rest.startswith(_FUNCTION_END):
            self._buffer = rest[len(_FUNCTION_END) :]
            self._events += [CallArguments("}" if self._num_parameters else "{}"), CallEnd()]
            self._state = "close"
            return True
        if match is not None or _FUNCTION_END.startswith(rest) or _may_begin_parameter(rest):
            return False
        self._state = "text"  # the call stays incomplete
        return True

    def _begin_value(self, name: str) -> None:
        opening = ("{" if self._num_parameters == 0 else ", ") + dump(name) + ": "
        self._num_parameters += 1
        one = self._properties.get(name)
        self._is_text_allowed = one is None or one.is_plain_text
        self._state = "string" if self._is_text_allowed else "value"
        self._events.append(CallArguments(opening + ('"' if self._state == "string" else "")))

    def _step_value(self) -> bool:
        position = self._buffer.find(_PARAMETER_END)
        if position < 0:
            if self._state == "string":
                held = held_length(self._buffer, "\n" + _PARAMETER_END) or held_length(self._buffer, _PARAMETER_END)
                self._show(self._take(len(self._buffer) - held))
            return False
        value = self._take(position)
        self._take(len(_PARAMETER_END))
        value = value.removesuffix("\n")
        if self._state == "string":
            self._show(value)
            self._events.append(CallArguments('"'))
        else:
            self._events.append(CallArguments(_as_json(value)))
        self._state = "parameters"
        return True

    def _show(self, text: str) -> None:
        if text:
            self._events.append(CallArguments(escaped(text)))

    def _step_close(self) -> bool:
        rest = self._buffer.lstrip()
        if rest.startswith(_CLOSE):
            self._buffer = rest[len(_CLOSE) :]
        elif _CLOSE.startswith(rest):
            return False
        self._state = "text"
        return True

    def _end(self) -> None:
        if self._state in ("text", "open"):
            self._text(self._take(len(self._buffer)))
        elif self._state == "string":
            self._show(self._take(len(self._buffer)))


def _parameter_format(one: Property) -> Format:
    if ">" in one.name or "\n" in one.name:
        raise UnsupportedToolError(f"the parameter {one.name!r} cannot be written as a tag")
    content: Format = {"type": "json_schema", "json_schema": one.schema}
    if one.is_plain_text:
        choices = [{"type": "const_string", "value": choice} for choice in one.choices]
        content = {"type": "or", "elements": choices} if choices else {"type": "any_text"}
    tag = {"type": "tag", "begin": f"<parameter={one.name}>\n", "content": content, "end": f"\n{_PARAMETER_END}\n"}
    return tag if one.is_required else {"type": "optional", "content": tag}


def _as_json(value: str) -> str:
    stripped = value.strip()
    try:
        strict_loads(stripped)
    except ValueError:
        literal = {"True": "true", "False": "false", "None": "null"}.get(stripped)
        return literal or dump(value)
    return stripped


def _is_call(events: Sequence[Event]) -> bool:
    """Whether these are the events of exactly one complete call."""
    return (
        len(events) > 1
        and isinstance(events[0], CallBegin)
        and isinstance(events[-1], CallEnd)
        and all(isinstance(event, CallArguments) for event in events[1:-1])
    )


def _may_begin_parameter(rest: str) -> bool:
    opening = "<parameter="
    return opening.startswith(rest) or (rest.startswith(opening) and ">" not in rest)

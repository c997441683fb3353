"""Custom tools: their input is text, not JSON, in a tag of ours that is the same with every model.

    <custom_tool_call name="NAME">
    input
    </custom_tool_call>

No model has a format of its own for them; raw text between tags is what a Lark grammar or a pattern can constrain.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from server.answer.events import CallArguments, CallBegin, CallEnd, Event, Reader
from server.tools.forms import ANY_TEXT, Format, tag
from server.tools.json_text import held_length

TRIGGER = "<custom_tool_call"
_END = "\n</custom_tool_call>"
_OPEN = re.compile(r'<custom_tool_call name="([^"<>]{1,64})">\n')
_LONGEST_OPENING = len('<custom_tool_call name="">\n') + 64


def custom_format(name: str, form: Any, origin: str) -> Format:
    """The form of one custom tool's call; ``form`` is the tool's ``format``, ``origin`` where the request has it."""
    content = ANY_TEXT
    if form is not None and form.type == "grammar":
        grammar = form.grammar
        place = {"origin": f"{origin}.grammar.definition"}
        if grammar.syntax == "regex":
            content = {"type": "regex", "pattern": grammar.definition, **place}
        else:
            content = {"type": "grammar", "grammar": grammar.definition, "syntax": "lark", **place}
    return tag(f'{TRIGGER} name="{name}">\n', content, _END)


class CustomCallParser:
    """Takes custom calls out of a text and gives everything else to the parser of the model's format.

    Where a grammar guarantees the form, the beginning of one more call, cut off behind complete ones, is no text.
    """

    def __init__(self, names: Collection[str], inner: Reader, *, is_constrained: bool = False) -> None:
        self._names = names
        self._inner = inner
        self._is_constrained = is_constrained
        self._has_whole_call = False
        self._buffer = ""
        self._is_inside = False

    def add(self, text: str) -> list[Event]:
        self._buffer += text
        events: list[Event] = []
        while self._buffer and self._step(events):
            pass
        self._has_whole_call = self._has_whole_call or any(isinstance(event, CallEnd) for event in events)
        return events

    def finish(self) -> list[Event]:
        rest, self._buffer = self._buffer, ""
        if self._is_inside:
            return [CallArguments(rest)] if rest else []
        if self._is_constrained and self._has_whole_call:
            rest = ""
        return [*self._inner.add(rest), *self._inner.finish()]

    def _step(self, events: list[Event]) -> bool:
        return self._step_inside(events) if self._is_inside else self._step_outside(events)

    def _step_outside(self, events: list[Event]) -> bool:
        position = self._buffer.find(TRIGGER)
        if position < 0:
            keep = held_length(self._buffer, TRIGGER)
            events += self._inner.add(self._take(len(self._buffer) - keep))
            return False
        if position:
            events += self._inner.add(self._take(position))
        match = _OPEN.match(self._buffer)
        if match is not None and match[1] in self._names:
            self._take(match.end())
            events.append(CallBegin(match[1], is_custom=True))
            self._is_inside = True
            return True
        if match is None and len(self._buffer) < _LONGEST_OPENING and "\n" not in self._buffer:
            return False
        events += self._inner.add(self._take(len(TRIGGER)))
        return True

    def _step_inside(self, events: list[Event]) -> bool:
        position = self._buffer.find(_END)
        keep = held_length(self._buffer, _END) if position < 0 else 0
        piece = self._take(len(self._buffer) - keep if position < 0 else position)
        if piece:
            events.append(CallArguments(piece))
        if position < 0:
            return False
        self._take(len(_END))
        events.append(CallEnd())
        self._is_inside = False
        return True

    def _take(self, size: int) -> str:
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

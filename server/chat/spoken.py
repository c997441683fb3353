"""Thinking and calls in OpenAI's form: the deltas of a stream, and a whole message."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from scheduler.messages import Finish
from server.chat.reader import Reading
from server.tools.events import CallArguments, CallBegin, CallEnd, Event, ParsedCall, Reasoning, Text, collect


class SpokenChoice:
    """One choice of a stream."""

    def __init__(self, reading: Reading) -> None:
        self._reader = reading.reader()
        self._is_legacy = reading.tools is not None and reading.tools.is_legacy
        self._num_calls = 0
        self._is_call_open = False
        self._is_custom = False

    def deltas(self, text: str, *, is_last: bool) -> list[dict[str, Any]]:
        """``delta`` objects for the next piece of text; pieces of one kind are joined."""
        events = self._reader.add(text)
        if is_last:
            events = events + self._reader.finish()
        return [self._delta(event) for event in _joined(events) if self._counts(event)]

    def finish_reason(self, finish: Finish) -> str:
        return _finish_reason(
            finish, has_calls=self._num_calls > 0 and not self._is_call_open, is_legacy=self._is_legacy
        )

    def _counts(self, event: Event) -> bool:
        """Note where calls begin and end; whether there is something to show."""
        if isinstance(event, CallBegin):
            self._num_calls += 1
            self._is_call_open = True
            self._is_custom = event.is_custom
        elif isinstance(event, CallEnd):
            self._is_call_open = False
            return False
        return True

    def _delta(self, event: Event) -> dict[str, Any]:
        match event:
            case Text(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text}
            case CallBegin(name):
                return self._call_delta(name, "")
            case CallArguments(text):
                return self._call_delta(None, text)
            case CallEnd():
                return {}

    def _call_delta(self, name: str | None, text: str) -> dict[str, Any]:
        kind, key = ("custom", "input") if self._is_custom else ("function", "arguments")
        said = {key: text} if name is None else {"name": name, key: text}
        if self._is_legacy:
            return {"function_call": said}
        call: dict[str, Any] = {"index": self._num_calls - 1}
        if name is not None:
            call |= {"id": _new_call_id(), "type": kind}
        return {"tool_calls": [{**call, kind: said}]}


def whole_message(reading: Reading, text: str, finish: Finish | None) -> tuple[dict[str, Any], str | None]:
    """The ``message`` object of a finished choice, and its ``finish_reason``."""
    reader = reading.reader()
    answer = collect([*reader.add(text), *reader.finish()])
    message: dict[str, Any] = {
        "role": "assistant",
        "content": answer.content if answer.content or not (answer.calls or answer.reasoning) else None,
        "refusal": None,
    }
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    is_legacy = reading.tools is not None and reading.tools.is_legacy
    if answer.calls and is_legacy:
        message["function_call"] = {"name": answer.calls[0].name, "arguments": answer.calls[0].arguments}
    elif answer.calls:
        message["tool_calls"] = [call_object(call) for call in answer.calls]
    if finish is None:
        return message, None
    return message, _finish_reason(finish, has_calls=answer.is_complete, is_legacy=is_legacy)


def call_object(call: ParsedCall) -> dict[str, Any]:
    """One of a message's ``tool_calls``."""
    if call.is_custom:
        return {"id": _new_call_id(), "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    return {
        "id": _new_call_id(),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _finish_reason(finish: Finish, *, has_calls: bool, is_legacy: bool) -> str:
    """A call that was cut off is no reason to call anything."""
    if finish.reason != "stop" or not has_calls:
        return finish.reason
    return "function_call" if is_legacy else "tool_calls"


def _joined(events: Sequence[Event]) -> list[Event]:
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        match last, event:
            case (Text(a), Text(b)):
                joined[-1] = Text(a + b)
            case (Reasoning(a), Reasoning(b)):
                joined[-1] = Reasoning(a + b)
            case (CallArguments(a), CallArguments(b)):
                joined[-1] = CallArguments(a + b)
            case _:
                joined.append(event)
    return joined


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"

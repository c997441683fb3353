"""Thinking, words and calls in the chat dialect's form: the deltas of a stream, and a whole message."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from server.answer.events import CallArguments, CallBegin, End, Event, ParsedAnswer, ParsedCall, Reasoning, Text


class DeltaWriter:
    """Writes the ``delta`` objects of one choice.

    Parameters
    ----------
    is_legacy
        Whether calls were offered as ``functions``, and so are answered with ``function_call``.
    """

    def __init__(self, *, is_legacy: bool) -> None:
        self._is_legacy = is_legacy
        self._num_calls = 0
        self._is_custom = False

    def deltas(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        """One for each event that shows something."""
        return [delta for event in events if (delta := self._delta(event))]

    def _delta(self, event: Event) -> dict[str, Any] | None:
        match event:
            case Text(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text}
            case CallBegin(name, is_custom):
                self._num_calls += 1
                self._is_custom = is_custom
                return self._call_delta(name, "")
            case CallArguments(text):
                return self._call_delta(None, text)
            case _:
                return None

    def _call_delta(self, name: str | None, text: str) -> dict[str, Any]:
        kind, key = ("custom", "input") if self._is_custom else ("function", "arguments")
        said = {key: text} if name is None else {"name": name, key: text}
        if self._is_legacy:
            return {"function_call": said}
        call: dict[str, Any] = {"index": self._num_calls - 1}
        if name is not None:
            call |= {"id": _new_call_id(), "type": kind}
        return {"tool_calls": [{**call, kind: said}]}


def message_body(answer: ParsedAnswer, *, is_legacy: bool) -> dict[str, Any]:
    """The ``message`` object of a finished choice."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": answer.content if answer.content or not (answer.calls or answer.reasoning) else None,
        "refusal": None,
    }
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls and is_legacy:
        message["function_call"] = {"name": answer.calls[0].name, "arguments": answer.calls[0].arguments}
    elif answer.calls:
        message["tool_calls"] = [call_object(call) for call in answer.calls]
    return message


def call_object(call: ParsedCall) -> dict[str, Any]:
    """One of a message's ``tool_calls``."""
    if call.is_custom:
        return {"id": _new_call_id(), "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    return {
        "id": _new_call_id(),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def finish_reason(end: End, *, is_legacy: bool) -> str:
    if not end.has_calls:
        return end.finish.reason
    return "function_call" if is_legacy else "tool_calls"


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"

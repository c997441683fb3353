"""What one choice of an answer holds, in order, in the terms of no dialect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from scheduler.messages import Finish


@dataclass(frozen=True, slots=True)
class Text:
    """Words for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of this tool begins; its arguments follow."""

    name: str
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of the current call's arguments: JSON text, or a custom tool's input as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The current call's arguments are complete."""


@dataclass(frozen=True, slots=True)
class End:
    """The choice is over."""

    finish: Finish
    has_calls: bool
    """Whether it ended by itself, with calls that are all complete. A call that was cut off is no reason to call."""


Event = Text | Reasoning | CallBegin | CallArguments | CallEnd | End


class Reader(Protocol):
    """Finds events in one choice's text, piece by piece; whatever the pieces, the joined events are the same."""

    def add(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]: ...


@dataclass(slots=True)
class ParsedCall:
    """One call, put together again."""

    name: str
    arguments: str = ""
    is_custom: bool = False
    is_complete: bool = False


@dataclass(slots=True)
class ParsedAnswer:
    """Everything the events of an answer say."""

    content: str
    reasoning: str
    calls: list[ParsedCall]
    end: End | None = None

    @property
    def is_complete(self) -> bool:
        """Whether there are calls, each of them with all of its arguments."""
        return bool(self.calls) and all(call.is_complete for call in self.calls)


def collect(events: Iterable[Event]) -> ParsedAnswer:
    """Join events; however an answer was cut into them, the result is the same."""
    answer = ParsedAnswer("", "", [])
    for event in events:
        match event:
            case Text(text):
                answer.content += text
            case Reasoning(text):
                answer.reasoning += text
            case CallBegin(name, is_custom):
                answer.calls.append(ParsedCall(name, is_custom=is_custom))
            case CallArguments(text):
                answer.calls[-1].arguments += text
            case CallEnd():
                answer.calls[-1].is_complete = True
            case End():
                answer.end = event
    return answer


def joined(events: Iterable[Event]) -> list[Event]:
    """The same events, with neighbours of one kind as one."""
    result: list[Event] = []
    for event in events:
        match result[-1] if result else None, event:
            case (Text(a), Text(b)):
                result[-1] = Text(a + b)
            case (Reasoning(a), Reasoning(b)):
                result[-1] = Reasoning(a + b)
            case (CallArguments(a), CallArguments(b)):
                result[-1] = CallArguments(a + b)
            case _:
                result.append(event)
    return result

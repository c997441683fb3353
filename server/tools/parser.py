"""The interface of a tool-call format: how its calls are written (for the grammar) and read (for the answer)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from server.answer.events import CallArguments, CallBegin, CallEnd, Event, Text
from server.tools.forms import Format, calls_in_a_row, constant, either
from server.tools.json_text import JsonEnd, held_length


def json_arguments(parameters: dict[str, Any], origin: str) -> Format:
    """Arguments as one JSON object; those of a tool without parameters are exactly ``{}``."""
    if parameters.get("properties") == {} and parameters.get("additionalProperties") is False:
        return constant("{}")
    return {"type": "json_schema", "json_schema": parameters, "origin": origin}


class ToolCallParser(ABC):
    """Reads one choice's text, piece by piece.

    Whatever the pieces, the joined events are the same. A subclass is a state machine: ``_state`` is the method that
    looks at ``_buffer``, takes from its beginning what it can decide about, and returns whether it got anywhere.

    Parameters
    ----------
    tools
        Parameter schemas of the tools that may be called, by name. A call of anything else is text.
    is_constrained
        Whether a grammar guarantees the form. Then a call is shown while it is being written; otherwise only once it
        has turned out to be one, so that a malformed call comes back as text, whole.
    """

    name: ClassVar[str]
    shown_tokens: ClassVar[tuple[str, ...]] = ()
    """Special tokens that this format is made of: the parser must see their spelling."""
    calls_are_messages: ClassVar[bool] = False
    """Whether a call is a message of its own, so that none can stand in a message that is continued."""
    separator: ClassVar[str] = "\n"
    """Between two calls where nothing but calls may be written."""

    def __init__(self, tools: Mapping[str, dict[str, Any]], *, is_constrained: bool) -> None:
        self.tools = tools
        self.is_constrained = is_constrained
        self._buffer = ""
        self._events: list[Event] = []
        self._state: Callable[[], bool] = self._start
        self._arguments_end = JsonEnd()
        self._has_whole_call = False

    def add(self, text: str) -> list[Event]:
        """The next piece of the answer."""
        self._buffer += text
        return self._run()

    def finish(self) -> list[Event]:
        """The answer is over: what was held back comes out."""
        events = self._run()
        self._end()
        return events + self._take_events()

    # how calls are written

    @classmethod
    @abstractmethod
    def recognises(cls, template: str) -> bool:
        """Whether a chat template that knows tools asks for this format."""

    @classmethod
    @abstractmethod
    def call_format(cls, name: str, parameters: dict[str, Any], origin: str) -> Format:
        """The form of one call of a function.

        Parameters
        ----------
        origin
            Where the request has the parameters, for errors.
        """

    @classmethod
    def required_format(cls, functions: Sequence[Format], customs: Sequence[Format], most: int) -> Format:
        """Calls and nothing else: at least one.

        Parameters
        ----------
        functions, customs
            Forms of a call of each function, by :meth:`call_format`, and of each custom tool.
        most
            Most calls in an answer.
        """
        return calls_in_a_row([*functions, *customs], cls.separator, most)

    @classmethod
    @abstractmethod
    def optional_format(cls, functions: Sequence[Format], customs: Sequence[Format], most: int) -> Format:
        """Words, calls, or both."""

    @classmethod
    def answer_format(cls, functions: Sequence[Format], customs: Sequence[Format], answer: Format, most: int) -> Format:
        """Calls, or an answer of a certain form."""
        return either([cls.required_format(functions, customs, most), answer])

    # for subclasses

    @abstractmethod
    def _start(self) -> bool:
        """The first state."""

    @abstractmethod
    def _end(self) -> None:
        """Decide about what is left in the buffer."""

    def _run(self) -> list[Event]:
        while self._buffer and self._state():
            pass
        return self._take_events()

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        self._has_whole_call = self._has_whole_call or any(isinstance(event, CallEnd) for event in events)
        return events

    def _take(self, size: int) -> str:
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def _text(self, text: str) -> None:
        if text:
            self._events.append(Text(text))

    def _words(self) -> bool:
        """A state: all that comes is words."""
        self._text(self._take(len(self._buffer)))
        return False

    def _words_unless_cut_call(self) -> None:
        """At the end: what is left is words, unless a grammar had begun one more call with it after others."""
        if self.is_constrained and self._has_whole_call:
            self._buffer = ""
        self._words()

    def _text_until(self, marker: str) -> bool:
        """Show the text before ``marker``; whether the buffer begins with it now."""
        position = self._buffer.find(marker)
        if position >= 0:
            self._text(self._take(position))
            return True
        self._text(self._take(len(self._buffer) - held_length(self._buffer, marker)))
        return False

    def _expect(self, expected: str, following: Callable[[], bool]) -> bool:
        """Take ``expected``, after white space, and go on with ``following``; anything else is text again."""
        rest = self._buffer.lstrip()
        if rest.startswith(expected):
            self._buffer = rest[len(expected) :]
            self._state = following
        elif expected.startswith(rest):
            return False
        else:
            self._state = self._start
        return True

    def _begin_call(self, name: str) -> None:
        self._events.append(CallBegin(name))
        self._arguments_end = JsonEnd()

    def _arguments(self) -> bool:
        """A state: show a JSON object of arguments as it comes."""
        end = self._arguments_end.feed(self._buffer)
        self._events.append(CallArguments(self._take(len(self._buffer) if end < 0 else end)))
        if end < 0:
            return False
        self._events.append(CallEnd())
        self._state = self._behind_arguments
        return True

    @abstractmethod
    def _behind_arguments(self) -> bool:
        """The state behind such an object."""

    def _whole_call(self, name: str, arguments: str) -> None:
        self._events += [CallBegin(name), CallArguments(arguments), CallEnd()]

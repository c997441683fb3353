"""The interface of a tool-call format: how its calls are written (for the grammar) and read (for the answer)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from server.tools.events import CallArguments, CallBegin, CallEnd, Event, Text
from server.tools.json_text import held_length

Format = dict[str, Any]
"""One ``format`` of an xgrammar structural tag."""


def json_arguments(parameters: dict[str, Any]) -> Format:
    """Arguments as one JSON object; those of a tool without parameters are exactly ``{}``."""
    if parameters.get("properties") == {} and parameters.get("additionalProperties") is False:
        return {"type": "const_string", "value": "{}"}
    return {"type": "json_schema", "json_schema": parameters}


class UnsupportedToolError(ValueError):
    """A tool's parameters cannot be written in this format; the message says what to change."""


class ToolCallParser(ABC):
    """Reads one choice's text, piece by piece.

    Whatever the pieces, the joined events are the same. A subclass's :meth:`_step` looks at ``_buffer``, takes from its
    beginning what it can decide about, and returns whether it got anywhere.

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
    prefill: ClassVar[str] = ""
    """What the prompt is continued with where a call is required; the parser reads it first."""
    separator: ClassVar[str] = "\n"
    """Between two calls where nothing but calls may be written."""

    def __init__(self, tools: Mapping[str, dict[str, Any]], *, is_constrained: bool) -> None:
        self.tools = tools
        self.is_constrained = is_constrained
        self._buffer = ""
        self._events: list[Event] = []

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
    def call_tag(cls, name: str, parameters: dict[str, Any]) -> Format:
        """The ``tag`` of one call.

        Raises
        ------
        UnsupportedToolError
        """

    @classmethod
    def required_format(cls, tags: Sequence[Format], *, is_parallel: bool) -> Format:
        """Calls and nothing else; one, or at least one."""
        return {
            "type": "tags_with_separator",
            "tags": list(tags),
            "separator": cls.separator,
            "at_least_one": True,
            "stop_after_first": not is_parallel,
        }

    @classmethod
    @abstractmethod
    def optional_format(cls, tags: Sequence[Format], *, is_parallel: bool) -> Format | None:
        """Words, calls, or both; ``None`` where calls cannot be constrained unless they are required."""

    # for subclasses

    @abstractmethod
    def _step(self) -> bool: ...

    @abstractmethod
    def _end(self) -> None:
        """Decide about what is left in the buffer."""

    def _run(self) -> list[Event]:
        while self._buffer and self._step():
            pass
        return self._take_events()

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _take(self, size: int) -> str:
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def _text(self, text: str) -> None:
        if text:
            self._events.append(Text(text))

    def _text_until(self, marker: str) -> bool:
        """Show the text before ``marker``; whether the buffer begins with it now."""
        position = self._buffer.find(marker)
        if position >= 0:
            self._text(self._take(position))
            return True
        self._text(self._take(len(self._buffer) - held_length(self._buffer, marker)))
        return False

    def _whole_call(self, name: str, arguments: str) -> None:
        self._events += [CallBegin(name), CallArguments(arguments), CallEnd()]

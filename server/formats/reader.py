"""One choice's text as thinking, words and calls, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduler.messages import Finish
from server.answer.events import CallBegin, CallEnd, End, Event, Reasoning, Text, joined
from server.formats.answer_format import AnswerFormat
from server.reasoning.state import NO_WISHES, ThinkingState, ThinkingWishes
from server.tools.definitions import ToolRequest


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a request's answers are read; the same for each of its choices."""

    format: AnswerFormat
    thinking: ThinkingState
    tools: ToolRequest | None = None
    is_constrained: bool = False
    """Whether a grammar guarantees the form of calls."""
    wishes: ThinkingWishes = NO_WISHES

    @property
    def is_plain(self) -> bool:
        """Whether an answer is nothing but words."""
        return self.reader().is_plain

    def reader(self) -> AnswerReader:
        """A reader for one choice."""
        return AnswerReader(self)


class AnswerReader:
    """Splits thinking off and finds calls in the rest.

    Where tools are offered, white space around calls belongs to them: what stands at the end of the words is held back
    until more words come.
    """

    def __init__(self, reading: Reading) -> None:
        self._shows_reasoning = reading.wishes.is_shown
        self._is_inline = not reading.wishes.is_separate
        self._splitter = reading.format.splitter(reading.thinking, keeps_markers=self._is_inline)
        self._parser = reading.format.parser(reading.tools, is_constrained=reading.is_constrained)
        self._trims = reading.tools is not None
        self._held_space = ""
        self._has_words = False
        self._num_begun = self._num_ended = 0
        """Calls."""

    @property
    def is_plain(self) -> bool:
        return self._splitter is None and self._parser is None

    def read(self, text: str, finish: Finish | None) -> list[Event]:
        """The next events; with ``finish`` the last ones."""
        if finish is None:
            return joined(self.add(text))
        events = self.read_whole(text)
        has_calls = self._num_begun > 0 and self._num_ended == self._num_begun
        return [*joined(events), End(finish, finish.reason == "stop" and has_calls)]

    def read_whole(self, text: str) -> list[Event]:
        """All events of a text that is there whole, but for the end."""
        return [*self.add(text), *self.finish()]

    def add(self, text: str) -> list[Event]:
        """What the next piece of text says."""
        if not text:
            return []
        if self._splitter is None:
            return self._parse(text)
        return self._through_parser(self._splitter.add(text))

    def finish(self) -> list[Event]:
        """What was held back, at the end of the text."""
        events = self._through_parser(self._splitter.finish()) if self._splitter is not None else []
        if self._parser is not None:
            events += self._settle(self._parser.finish())
        if self._held_space and not self._num_begun:
            events.append(Text(self._held_space))
        self._held_space = ""
        return events

    def _through_parser(self, events: Sequence[Event]) -> list[Event]:
        found: list[Event] = []
        for event in events:
            found += self._parse(event.text) if isinstance(event, Text) else self._settle([event])
        return found

    def _parse(self, text: str) -> list[Event]:
        return [Text(text)] if self._parser is None else self._settle(self._parser.add(text))

    def _settle(self, events: Sequence[Event]) -> list[Event]:
        """Thinking as the request wants it, and no white space around calls."""
        settled: list[Event] = []
        for event in events:
            if isinstance(event, Reasoning):
                if self._is_inline:
                    settled.append(Text(event.text))
                elif self._shows_reasoning:
                    settled.append(event)
            elif isinstance(event, Text) and self._trims:
                self._hold_space(event.text, settled.append)
            else:
                if isinstance(event, CallBegin):
                    self._held_space = ""
                    self._num_begun += 1
                self._num_ended += isinstance(event, CallEnd)
                settled.append(event)
        return settled

    def _hold_space(self, text: str, show: Callable[[Event], None]) -> None:
        words = text.rstrip()
        if not words:
            self._held_space += text
            return
        shown = self._held_space + words
        if self._num_begun and not self._has_words:
            shown = shown.lstrip()
        self._held_space = text[len(words) :]
        self._has_words = True
        show(Text(shown))

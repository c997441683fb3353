"""Telling thinking from the answer while it is being written.

The rule for a text without an end marker: what was generated is thinking if the prompt had opened it, or if the model
itself began with the start marker; otherwise it is the answer.
"""

from __future__ import annotations

from server.answer.events import Event, Reasoning, Text
from server.reasoning.formats import ReasoningFormat
from server.reasoning.state import ThinkingState
from server.tools.json_text import held_length


class ReasoningSplitter:
    """Splits one choice's text, piece by piece; whatever the pieces, the joined events are the same.

    Markers, and white space next to them, belong to neither part.

    Parameters
    ----------
    form
        The markers.
    state
        What the prompt says.
    keeps_markers
        Give thinking as it was written, markers and all.
    """

    def __init__(self, form: ReasoningFormat, state: ThinkingState, *, keeps_markers: bool = False) -> None:
        self._form = form
        self._keeps_markers = keeps_markers
        self._buffer = ""
        self._state = {
            ThinkingState.OPEN: "opened",
            ThinkingState.CLOSED: "answer",
            ThinkingState.UNSAID: "unsaid",
        }[state]

    def add(self, text: str) -> list[Event]:
        if self._state == "answer":  # nearly always
            return [Text(text)] if text else []
        self._buffer += text
        events: list[Event] = []
        while self._buffer and self._step(events):
            pass
        return events

    def finish(self) -> list[Event]:
        rest, self._buffer = self._buffer, ""
        if self._state in ("unsaid", "answer"):
            return [Text(rest)] if rest else []
        if self._keeps_markers:
            return [Reasoning(rest)] if rest else []
        rest = "" if self._state == "after end" else rest.rstrip()
        return [Reasoning(rest)] if rest else []

    def _step(self, events: list[Event]) -> bool:
        match self._state:
            case "unsaid" | "opened":
                return self._step_beginning(events)
            case "leading":
                return self._step_leading()
            case "thinking":
                return self._step_thinking(events)
            case "after end":
                return self._step_after_end(events)
            case _:
                events.append(Text(self._take(len(self._buffer))))
                return False

    def _step_beginning(self, events: list[Event]) -> bool:
        """Take a start marker; a model may repeat the prompt's."""
        start = self._form.start
        rest = self._buffer.lstrip()
        if not rest.startswith(start) and start.startswith(rest):
            return False
        has_start = rest.startswith(start)
        if not has_start and self._state == "unsaid":
            self._state = "answer"
            return True
        skipped = self._take(len(self._buffer) - len(rest) + (len(start) if has_start else 0))
        if self._keeps_markers:
            self._emit(events, skipped)
            self._state = "thinking"
        else:
            self._state = "leading"
        return True

    def _step_leading(self) -> bool:
        self._buffer = self._buffer.lstrip()
        if self._buffer:
            self._state = "thinking"
        return bool(self._buffer)

    def _step_thinking(self, events: list[Event]) -> bool:
        end = self._form.end
        position = self._buffer.find(end)
        if position >= 0:
            piece = self._take(position)
            marker = self._take(len(end))
            self._emit(events, piece + marker if self._keeps_markers else piece.rstrip())
            self._state = "after end"
            return True
        keep = held_length(self._buffer, end)
        if not self._keeps_markers:
            ready = self._buffer[: len(self._buffer) - keep]
            keep = len(self._buffer) - len(ready.rstrip())
        self._emit(events, self._take(len(self._buffer) - keep))
        return False

    def _step_after_end(self, events: list[Event]) -> bool:
        rest = self._buffer.lstrip()
        space = self._take(len(self._buffer) - len(rest))
        if self._keeps_markers:
            self._emit(events, space)
        if rest:
            self._state = "answer"
        return bool(rest)

    def _emit(self, events: list[Event], text: str) -> None:
        if text:
            events.append(Reasoning(text))

    def _take(self, size: int) -> str:
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

"""Where the thinking of one choice begins and ends, whatever tokens its markers are spelled with."""

from __future__ import annotations

from collections.abc import Sequence

from constrained.spec import ReasoningSpec
from constrained.thinking.boundary import Marker

_Symbol = int | tuple[int]
"""A byte of text, or a whole token that has none (a special one)."""


class ThinkingState:
    """Counts the thinking tokens of a choice, its markers included."""

    __slots__ = (
        "_end", "_may_think_again", "_num_matched", "_num_opening", "_start", "is_thinking", "num_tokens", "stops_apply"
    )  # fmt: skip

    def __init__(self, reasoning: ReasoningSpec | None, token_bytes: Sequence[bytes]) -> None:
        self.is_thinking = reasoning is not None and reasoning.is_thinking
        self.num_tokens = 0
        self.stops_apply = reasoning is not None and reasoning.stops_apply
        """Whether stop strings end the answer inside its thinking."""
        self._end = Marker(() if reasoning is None else _symbols(reasoning.think_end_ids, token_bytes))
        self._start = Marker(() if reasoning is None else _symbols(reasoning.think_start_ids, token_bytes))
        """Empty: no thinking can begin any more."""
        self._num_matched = 0
        """Symbols of the marker that is looked for."""
        self._num_opening = 0
        """Tokens that the marker of a beginning part may hold."""
        self._may_think_again = reasoning is not None and reasoning.may_think_again

    def push(self, token_id: int, token_bytes: Sequence[bytes]) -> None:
        """Add one accepted token; what follows a marker in its last token is not looked at."""
        if self.is_thinking:
            self.num_tokens += 1
            self.is_thinking = not self._completes(self._end, _symbols((token_id,), token_bytes))
        elif self._start.symbols:
            self._open(_symbols((token_id,), token_bytes))

    def _open(self, symbols: Sequence[_Symbol]) -> None:
        """Look for the marker at the beginning of the answer, or anywhere in it if the model may think again."""
        self._num_opening += 1
        if not self._may_think_again:
            symbols = symbols if self._num_matched else _without_blanks(symbols)
            rest = self._start.symbols[self._num_matched :]
            if any(one != other for one, other in zip(rest, symbols, strict=False)):
                self._start = Marker(())
                return
        elif self._num_matched == 0:
            self._num_opening = 1
        if self._completes(self._start, symbols):
            self.is_thinking = True
            self.num_tokens += self._num_opening
            if not self._may_think_again:
                self._start = Marker(())

    def _completes(self, marker: Marker, symbols: Sequence[_Symbol]) -> bool:
        self._num_matched, length = marker.advance(self._num_matched, symbols)
        return length is not None


def _symbols(token_ids: Sequence[int], token_bytes: Sequence[bytes]) -> list[_Symbol]:
    symbols: list[_Symbol] = []
    for token_id in token_ids:
        text = token_bytes[token_id] if token_id < len(token_bytes) else b""
        symbols += list(text) if text else [(token_id,)]
    return symbols


def _without_blanks(symbols: Sequence[_Symbol]) -> Sequence[_Symbol]:
    """``symbols`` from the first on that is no white space."""
    for index, symbol in enumerate(symbols):
        if not (isinstance(symbol, int) and chr(symbol).isspace()):
            return symbols[index:]
    return ()

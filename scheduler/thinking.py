"""Where the thinking of one choice begins and ends, whatever tokens its markers are spelled with."""

from __future__ import annotations

from collections.abc import Sequence

from constrained.spec import ReasoningSpec

_Symbol = int | tuple[int]
"""A byte of text, or a whole token that has none (a special one)."""


class ThinkingState:
    """Counts the thinking tokens of a choice, its markers included."""

    __slots__ = ("_end", "_may_think_again", "_num_opening", "_start", "is_thinking", "num_tokens", "stops_apply")

    def __init__(self, reasoning: ReasoningSpec | None, token_bytes: Sequence[bytes]) -> None:
        self.is_thinking = reasoning is not None and reasoning.is_thinking
        self.num_tokens = 0
        self.stops_apply = reasoning is not None and reasoning.stops_apply
        """Whether stop strings end the answer inside its thinking."""
        self._end = self._start = _Marker(())
        self._num_opening = 0
        """Tokens that the marker of a beginning part may hold."""
        self._may_think_again = reasoning is not None and reasoning.may_think_again
        if reasoning is not None:
            self._end = _Marker(_symbols(reasoning.think_end_ids, token_bytes))
            self._start = _Marker(_symbols(reasoning.think_start_ids, token_bytes))

    def push(self, token_id: int, token_bytes: Sequence[bytes]) -> None:
        """Add one accepted token; what follows a marker in its last token is not looked at."""
        if self.is_thinking:
            self.num_tokens += 1
            self.is_thinking = not self._end.push(_symbols((token_id,), token_bytes))
        elif self._start:
            self._open(_symbols((token_id,), token_bytes))

    def _open(self, symbols: Sequence[_Symbol]) -> None:
        """Look for the marker at the beginning of the answer, or anywhere in it if the model may think again."""
        start = self._start
        self._num_opening += 1
        if not self._may_think_again:
            symbols = symbols if start.num_matched else _without_blanks(symbols)
            if not start.begins_with(symbols):
                self._start = _Marker(())
                return
        elif start.num_matched == 0:
            self._num_opening = 1
        if start.push(symbols):
            self.is_thinking = True
            self.num_tokens += self._num_opening
            self._start = start if self._may_think_again else _Marker(())


class _Marker:
    """A sequence of symbols to be found in a stream of them. Knuth-Morris-Pratt."""

    __slots__ = ("_failure", "_symbols", "num_matched")

    def __init__(self, symbols: Sequence[_Symbol]) -> None:
        self._symbols = symbols
        self._failure = _failure_function(symbols)
        self.num_matched = 0

    def __bool__(self) -> bool:
        return bool(self._symbols)

    def begins_with(self, symbols: Sequence[_Symbol]) -> bool:
        """Whether what is left of it begins with ``symbols``, as far as it goes."""
        rest = self._symbols[self.num_matched :]
        return all(one == other for one, other in zip(rest, symbols, strict=False))

    def push(self, symbols: Sequence[_Symbol]) -> bool:
        """Whether they complete it."""
        for symbol in symbols:
            while self.num_matched and self._symbols[self.num_matched] != symbol:
                self.num_matched = self._failure[self.num_matched - 1]
            if self._symbols[self.num_matched] == symbol:
                self.num_matched += 1
            if self.num_matched == len(self._symbols):
                self.num_matched = 0
                return True
        return False


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


def _failure_function(pattern: Sequence[_Symbol]) -> list[int]:
    failure = [0] * len(pattern)
    matched = 0
    for index in range(1, len(pattern)):
        while matched and pattern[matched] != pattern[index]:
            matched = failure[matched - 1]
        matched += pattern[matched] == pattern[index]
        failure[index] = matched
    return failure

"""Where the thinking of one choice ends, whatever tokens its marker is spelled with."""

from __future__ import annotations

from collections.abc import Sequence

from constrained.spec import ReasoningSpec

_Symbol = int | tuple[int]
"""A byte of text, or a whole token that has none (a special one)."""


class ThinkingState:
    """Counts the thinking tokens of a choice, its marker included."""

    __slots__ = ("_failure", "_marker", "_matched", "is_thinking", "num_tokens", "stops_apply")

    def __init__(self, reasoning: ReasoningSpec | None, token_bytes: Sequence[bytes]) -> None:
        self.is_thinking = reasoning is not None and reasoning.is_thinking
        self.num_tokens = 0
        self.stops_apply = reasoning is not None and reasoning.stops_apply
        """Whether stop strings end the answer inside its thinking."""
        self._marker: list[_Symbol] = []
        if reasoning is not None and self.is_thinking:
            for token_id in reasoning.think_end_ids:
                self._marker += _symbols(token_id, token_bytes)
        self._failure = _failure_function(self._marker)
        self._matched = 0

    def push(self, token_id: int, token_bytes: Sequence[bytes]) -> None:
        """Add one accepted token. Knuth-Morris-Pratt; what follows the marker in its last token is not looked at."""
        if not self.is_thinking:
            return
        self.num_tokens += 1
        for symbol in _symbols(token_id, token_bytes):
            while self._matched and self._marker[self._matched] != symbol:
                self._matched = self._failure[self._matched - 1]
            if self._marker[self._matched] == symbol:
                self._matched += 1
            if self._matched == len(self._marker):
                self.is_thinking = False
                return


def _symbols(token_id: int, token_bytes: Sequence[bytes]) -> list[_Symbol]:
    text = token_bytes[token_id] if token_id < len(token_bytes) else b""
    return list(text) if text else [(token_id,)]


def _failure_function(pattern: Sequence[_Symbol]) -> list[int]:
    failure = [0] * len(pattern)
    matched = 0
    for index in range(1, len(pattern)):
        while matched and pattern[matched] != pattern[index]:
            matched = failure[matched - 1]
        matched += pattern[matched] == pattern[index]
        failure[index] = matched
    return failure

"""Finding the end-of-thinking marker in a stream of tokens, however the model spells it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from constrained.environment import GrammarEnvironment, ids_to_words


class Marker:
    """A sequence of symbols to be found in a stream of them (Knuth, Morris and Pratt).

    A state is the number of its symbols that the stream ends with.
    """

    def __init__(self, symbols: Sequence[Hashable]) -> None:
        self.symbols = symbols
        self._failure = [0] * len(symbols)
        state = 0
        for index in range(1, len(symbols)):
            state = self._following(state, symbols[index])
            self._failure[index] = state

    def advance(self, state: int, symbols: Sequence[Hashable]) -> tuple[int, int | None]:
        """The next state, and how many of ``symbols`` complete the marker (``None``: it is not complete)."""
        for index, symbol in enumerate(symbols):
            state = self._following(state, symbol)
            if state == len(self.symbols):
                return 0, index + 1
        return state, None

    def _following(self, state: int, symbol: Hashable) -> int:
        while state and self.symbols[state] != symbol:
            state = self._failure[state - 1]
        return state + (self.symbols[state] == symbol)


class ThinkEndMarker:
    """The marker as bytes, matched over token bytes: a model may split it in other tokens than the tokenizer would.

    A state is the number of marker bytes that the text ends with.
    """

    def __init__(self, environment: GrammarEnvironment, token_ids: tuple[int, ...]) -> None:
        if not token_ids or not all(0 <= i < len(environment.vocabulary) for i in token_ids):
            raise ValueError(f"an end-of-thinking marker needs token ids inside the vocabulary, not {token_ids}")
        self.token_ids = token_ids
        self._token_bytes = environment.vocabulary.token_bytes
        self._environment = environment
        self.data = b"".join(self._token_bytes[i] for i in token_ids)
        self._marker = Marker(self.data)
        self._boundaries = {0: 0}
        length = 0
        for number, token_id in enumerate(token_ids):
            length += len(self._token_bytes[token_id])
            self._boundaries[length] = number + 1

    def advance(self, state: int, token_id: int) -> tuple[int, bytes | None]:
        """The next state, and what follows the marker when this token completes it (else ``None``)."""
        token = self._token_bytes[token_id] if token_id < len(self._token_bytes) else b""
        state, length = self._marker.advance(state, token)
        return state, None if length is None else token[length:]

    def forbidden_words(self, state: int) -> npt.NDArray[np.int32] | None:
        """Bits of tokens that complete the marker and go on with text of the answer; ``None`` if there are none.

        That text would never pass the grammar. White space after the marker belongs to the marker.
        """
        return _forbidden_words(self._environment, self.data, state)

    def forced_words(self, state: int) -> npt.NDArray[np.int32]:
        """Bits of the tokens that go on with the marker and with nothing else. [ceil(V / 32)] int32"""
        number = self._boundaries.get(state)
        if number is not None and number < len(self.token_ids):
            return ids_to_words([self.token_ids[number]], self._environment.num_mask_words)
        rest = self.data[state:]
        visible = self._environment.matchable_bytes
        return ids_to_words(
            [i for i, b in enumerate(visible) if b and rest.startswith(b)], self._environment.num_mask_words
        )


@lru_cache(maxsize=256)
def _forbidden_words(environment: GrammarEnvironment, marker: bytes, state: int) -> npt.NDArray[np.int32] | None:
    rest = marker[state:]
    ids = [i for i, b in enumerate(environment.matchable_bytes) if b.startswith(rest) and b[len(rest) :].strip()]
    return ids_to_words(ids, environment.num_mask_words) if ids else None

"""Incremental detokenising over token bytes.

What is shown is always a prefix of ``b"".join(token bytes).decode("utf-8", "replace")``: a character is shown once it
is complete, bytes that may still become part of a stop string are held back, ill-formed bytes become U+FFFD exactly as
when the whole is decoded at once.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from constrained.vocabulary import Vocabulary

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """Text of one choice as its tokens come."""

    num_bytes: int
    """Bytes of output so far, special tokens not counted."""
    num_released: int
    """Bytes of those that are shown or part of a character that is still incomplete."""

    def add(self, token_ids: Sequence[int], held_bytes: int) -> str:
        """New text to show after ``token_ids``, with the last ``held_bytes`` bytes held back."""

    def finish(self, token_ids: Sequence[int], num_bytes: int | None) -> str:
        """The rest of the text after the last ``token_ids``, cut at ``num_bytes`` bytes of output when given."""


def make_detokenizer(
    vocabulary: Vocabulary, *, skip_special_tokens: bool, shown_ids: frozenset[int] = frozenset()
) -> Detokenizer:
    """``shown_ids``: special tokens to show even where the others are skipped."""
    if not skip_special_tokens:
        return FullDetokenizer(vocabulary, vocabulary.special_ids)
    return FullDetokenizer(vocabulary, shown_ids) if shown_ids else VisibleDetokenizer(vocabulary)


class VisibleDetokenizer:
    """Skips special tokens."""

    __slots__ = ("_decode", "_held", "_size", "_table", "num_bytes", "num_released")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._table = vocabulary.visible_bytes
        self._size = len(self._table)
        self._decode = _new_decoder("replace").decode
        self._held = b""
        self.num_bytes = 0
        self.num_released = 0

    def add(self, token_ids: Sequence[int], held_bytes: int) -> str:
        if len(token_ids) == 1 and not held_bytes and not self._held:  # nearly always
            token_id = token_ids[0]
            new = self._table[token_id] if token_id < self._size else b""
            self.num_bytes += len(new)
            self.num_released = self.num_bytes
            return self._decode(new)
        self._hold(token_ids)
        return self._release(max(self.num_bytes - held_bytes, self.num_released))

    def finish(self, token_ids: Sequence[int], num_bytes: int | None) -> str:
        self._hold(token_ids)
        end = self.num_bytes if num_bytes is None else max(num_bytes, self.num_released)
        return self._release(end) + self._decode(b"", True)

    def _hold(self, token_ids: Sequence[int]) -> None:
        table, size = self._table, self._size
        new = b"".join([table[i] if i < size else b"" for i in token_ids])
        self.num_bytes += len(new)
        self._held += new

    def _release(self, end: int) -> str:
        released = self._held[: end - self.num_released]
        self._held = self._held[len(released) :]
        self.num_released = end
        return self._decode(released)


class FullDetokenizer:
    """Shows some or all special tokens by their spelling.

    Positions from the scheduler count no special tokens, so each piece remembers whether it counts. A special token
    is shown as soon as all counted bytes before it are.
    """

    def __init__(self, vocabulary: Vocabulary, shown_ids: frozenset[int]) -> None:
        self._table = vocabulary.token_bytes
        self._special_ids = vocabulary.special_ids
        self._shown_ids = shown_ids
        self._decode = _new_decoder("replace").decode
        self._pending: deque[tuple[bytes, bool]] = deque()
        self.num_bytes = 0
        self.num_released = 0

    def add(self, token_ids: Sequence[int], held_bytes: int) -> str:
        self._hold(token_ids)
        return self._release(max(self.num_bytes - held_bytes, self.num_released))

    def finish(self, token_ids: Sequence[int], num_bytes: int | None) -> str:
        self._hold(token_ids)
        end = self.num_bytes if num_bytes is None else max(num_bytes, self.num_released)
        return self._release(end) + self._decode(b"", True)

    def _hold(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            counts = token_id not in self._special_ids
            is_shown = token_id < len(self._table) and (counts or token_id in self._shown_ids)
            piece = self._table[token_id] if is_shown else b""
            self._pending.append((piece, counts))
            self.num_bytes += len(piece) if counts else 0

    def _release(self, end: int) -> str:
        released: list[bytes] = []
        while self._pending:
            piece, counts = self._pending[0]
            room = end - self.num_released
            if counts and len(piece) > room:
                if room:
                    released.append(piece[:room])
                    self._pending[0] = (piece[room:], True)
                    self.num_released = end
                break
            self._pending.popleft()
            released.append(piece)
            self.num_released += len(piece) if counts else 0
        return self._decode(b"".join(released))

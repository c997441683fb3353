"""What a model drew where the same text was forced before, or text that begins with the same punctuation."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cachetools import LRUCache

_PLACES_KEPT = 16384
_MOST_VOTES = 4
_TEXT_KEPT = 64
_PUNCTUATION = re.compile(rb"[^\w\x80-\xff]{1,8}")

_Place = tuple[int | None, bytes]
"""The token before, and how the forced text begins; ``None``: any token, and the text's first punctuation alone."""


class LearnedSpellings:
    """The token drawn most, of late, in front of one forced text.

    First asked is what was drawn for the very text behind the same token. Where that place is new, the punctuation
    at the beginning of the text decides: a model that writes ``":`` and ``"`` where one token would do writes them
    so behind every key.

    Only forced text is remembered, which is the schema's and no user's.

    Parameters
    ----------
    token_bytes
        Visible bytes of each token id.
    """

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._votes: LRUCache[_Place, tuple[int, int]] = LRUCache(_PLACES_KEPT)

    def get(self, before: int, forced: bytes) -> int | None:
        vote = self._votes.get((before, forced[:_TEXT_KEPT])) or self._votes.get((None, _punctuation(forced)))
        return None if vote is None else vote[0]

    def observe(self, token_ids: Sequence[int], begin: int, forced: bytes) -> None:
        """Learn from output: ``forced`` was what had to follow ``token_ids[:begin]``."""
        for index in range(begin, len(token_ids)):
            token = token_ids[index]
            self._count((token_ids[index - 1], forced[:_TEXT_KEPT]), token)
            data = self._token_bytes[token] if token < len(self._token_bytes) else b""
            punctuation = _punctuation(forced)
            if data and punctuation.startswith(data):
                self._count((None, punctuation), token)
            if not data or not forced.startswith(data) or len(data) == len(forced):
                return
            forced = forced[len(data) :]

    def _count(self, place: _Place, token: int) -> None:
        """Boyer and Moore's majority vote, with few enough votes that a change of mind shows soon."""
        leader, votes = self._votes.get(place, (token, 0))
        if leader == token:
            self._votes[place] = (leader, min(votes + 1, _MOST_VOTES))
        elif votes:
            self._votes[place] = (leader, votes - 1)
        else:
            self._votes[place] = (token, 1)


def _punctuation(text: bytes) -> bytes:
    """The ASCII punctuation and space that ``text`` begins with."""
    match = _PUNCTUATION.match(text)
    return match[0] if match is not None else b""

"""What a model drew where the same text was forced before."""

from __future__ import annotations

from collections.abc import Sequence

from cachetools import LRUCache

_PLACES_KEPT = 16384
_MOST_VOTES = 4


class LearnedSpellings:
    """The token drawn most, of late, behind one token and in front of one forced text.

    Only forced text is remembered, which is the schema's and no user's.

    Parameters
    ----------
    token_bytes
        Visible bytes of each token id.
    """

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._votes: LRUCache[tuple[int, bytes], tuple[int, int]] = LRUCache(_PLACES_KEPT)

    def get(self, before: int, forced: bytes) -> int | None:
        vote = self._votes.get((before, forced))
        return None if vote is None else vote[0]

    def observe(self, token_ids: Sequence[int], begin: int, forced: bytes) -> None:
        """Learn from output: ``forced`` was what had to follow ``token_ids[:begin]``."""
        for index in range(begin, len(token_ids)):
            token = token_ids[index]
            self._count((token_ids[index - 1], forced), token)
            data = self._token_bytes[token] if token < len(self._token_bytes) else b""
            if not data or not forced.startswith(data) or len(data) == len(forced):
                return
            forced = forced[len(data) :]

    def _count(self, place: tuple[int, bytes], token: int) -> None:
        """Boyer and Moore's majority vote, with few enough votes that a change of mind shows soon."""
        leader, votes = self._votes.get(place, (token, 0))
        if leader == token:
            self._votes[place] = (leader, min(votes + 1, _MOST_VOTES))
        elif votes:
            self._votes[place] = (leader, votes - 1)
        else:
            self._votes[place] = (token, 1)

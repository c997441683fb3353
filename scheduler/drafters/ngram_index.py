"""Where a run of tokens was seen last."""

from __future__ import annotations

from collections.abc import Sequence

_NONE = -1


class NgramIndex:
    """The latest places of every run of ``size`` tokens in a growing list.

    Only places that something follows are known, and a run's own last place is not an answer to a look-up of it.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._place: dict[tuple[int, ...], int] = {}
        """Of each run, the index behind its latest occurrence that something follows."""
        self._num_indexed = 0

    def update(self, tokens: Sequence[int]) -> None:
        """Take in what was appended since the last call."""
        size = self._size
        place = self._place
        # The run that ends the list is left for later: nothing follows it.
        for end in range(max(size, self._num_indexed), len(tokens)):
            place[tuple(tokens[end - size : end])] = end
        self._num_indexed = max(self._num_indexed, len(tokens))

    def find(self, run: Sequence[int]) -> int | None:
        """The index behind the latest place of the last ``size`` tokens of ``run``."""
        if len(run) < self._size:
            return None
        found = self._place.get(tuple(run[len(run) - self._size :]), _NONE)
        return None if found == _NONE else found

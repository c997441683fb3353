"""How many tokens a source may guess for one request, from how often its guesses were right."""

from __future__ import annotations

_FIRST_PAUSE = 8
_LONGEST_PAUSE = 512


class AdaptiveLength:
    """Doubles the length when a whole draft was right, cuts it to what was right otherwise.

    At length 0 the source pauses; every further failure doubles the pause, so that guessing at text which cannot be
    guessed costs less and less. One right guess restores everything.

    Parameters
    ----------
    most
        Longest draft.
    """

    __slots__ = ("_most", "_next_pause", "_wait", "length")

    def __init__(self, most: int) -> None:
        self.length = min(4, most)
        self._most = most
        self._next_pause = _FIRST_PAUSE
        self._wait = 0

    def is_paused(self) -> bool:
        """Whether nothing should be guessed in this step; counts the step."""
        if self._wait:
            self._wait -= 1
            if self._wait:
                return True
            self.length = 1
        return self.length == 0

    def count(self, num_proposed: int, num_accepted: int) -> None:
        """Learn from one verified draft."""
        if num_accepted:
            self._next_pause = _FIRST_PAUSE
        if num_accepted >= num_proposed:
            self.length = min(self._most, max(2 * num_accepted, self.length))
            return
        self.length = num_accepted if num_accepted else self.length // 2
        if not self.length:
            self._wait = self._next_pause
            self._next_pause = min(2 * self._next_pause, _LONGEST_PAUSE)

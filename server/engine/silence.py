"""How long nothing was heard of another process."""

from __future__ import annotations

import time
from collections.abc import Callable

_CHECKS = 10


class Silence:
    """Whether something that should speak up now and then has been silent for too long.

    Time in which this process did not run either (stopped in a terminal, say) does not count.

    Parameters
    ----------
    limit
        Seconds.
    """

    def __init__(self, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.interval = limit / _CHECKS
        """Seconds after which :meth:`is_too_long` should be asked again."""
        self._clock = clock
        self._silent = 0.0
        self._checked = clock()

    def heard(self) -> None:
        self._silent = 0.0

    def is_too_long(self) -> bool:
        now = self._clock()
        self._silent += min(now - self._checked, 2 * self.interval)
        self._checked = now
        return self._silent > self.limit

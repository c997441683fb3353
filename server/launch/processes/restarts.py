"""How often a process that keeps dying is started again."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field


@dataclass
class RestartPolicy:
    """At once after the first crash, then after growing pauses; never more than ``max_crashes`` in a window."""

    max_crashes: int = 5
    window_seconds: float = 300.0
    first_pause: float = 0.5
    longest_pause: float = 10.0
    _crashes: collections.deque[float] = field(default_factory=collections.deque)

    def next_pause(self, now: float) -> float | None:
        """Count a crash at ``now`` and return the seconds to wait before a restart; ``None``: no more restarts."""
        self._crashes.append(now)
        while self._crashes[0] < now - self.window_seconds:
            self._crashes.popleft()
        count = len(self._crashes)
        if count >= self.max_crashes:
            return None
        return 0.0 if count == 1 else min(self.first_pause * 2 ** (count - 2), self.longest_pause)

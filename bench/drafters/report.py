"""What is printed: figures, and claims that hold or fail."""

from __future__ import annotations

import time

from rich.console import Console


class Report:
    """Lines on the terminal, each with the time since the start, and how many claims failed."""

    def __init__(self) -> None:
        self.num_failed = 0
        self._out = Console(highlight=False, soft_wrap=True, markup=False)
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        self._out.print(f"[{time.monotonic() - self._started:5.0f} s] {text}")

    def claim(self, text: str, holds: bool) -> None:
        self.num_failed += not holds
        self.say(f"{'pass' if holds else 'FAIL'}: {text}")

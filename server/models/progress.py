"""What resolving a model has to report while it works."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told of each stage of work; :class:`server.launch.console.Console` shows it to a person."""

    def stage(self, text: str) -> None:
        """A new piece of work has begun."""

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        """How far the present piece of work has come."""


class SilentProgress:
    """Reports nothing."""

    def stage(self, text: str) -> None:
        pass

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        pass

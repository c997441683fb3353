"""What a person sees while the server starts: moving bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from types import TracebackType

from rich.console import Console as RichConsole
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

_LINE_SECONDS = 5.0


class Console:
    """Shows stages and how far they are; is a :class:`server.models.progress.Progress`."""

    def __init__(self) -> None:
        self._rich = RichConsole(stderr=True, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._text = ""
        self._last_line = 0.0

    def __enter__(self) -> Console:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish_stage()

    def stage(self, text: str) -> None:
        """A new piece of work has begun."""
        self.finish_stage()
        self._text, self._last_line = text, time.monotonic()
        if not self._rich.is_terminal:
            self._print(f"{text} ...")
            return
        self._bar = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=self._rich, transient=True
        )
        self._task = self._bar.add_task(text, total=None)
        self._bar.start()

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        """How far a download has come."""
        if self._bar is None:
            self._line(f"{self._text}: {done_bytes / 1e6:.0f} of {total_bytes / 1e6:.0f} MB")
            return
        assert self._task is not None
        if self._bar.tasks[0].total is None:
            self._bar.columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), DownloadColumn())
        self._bar.update(self._task, completed=done_bytes, total=total_bytes)

    def load(self, text: str, fraction: float) -> None:
        """How far a step of loading has come, from 0 to 1."""
        if text != self._text:
            self.stage(text)
        if self._bar is None:
            if 0 < fraction < 1:
                self._line(f"{text}: {fraction:.0%}")
            return
        assert self._task is not None
        if fraction > 0 and self._bar.tasks[0].total is None:
            self._bar.columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:>3.0f}%"),
            )
        self._bar.update(self._task, completed=fraction, total=1.0 if fraction > 0 else None)

    def finish_stage(self) -> None:
        """Clear what is moving."""
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._task, self._text = None, None, ""

    def say(self, text: str) -> None:
        """A line, or several, that stay."""
        self.finish_stage()
        self._print(text)

    def warn(self, text: str) -> None:
        """A line about something that may not be as it was meant."""
        self._print(f"warning: {text}")

    def fail(self, text: str) -> None:
        """Why the server stops."""
        self.finish_stage()
        self._print(f"scansion: {text}")

    def _line(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last_line >= _LINE_SECONDS:
            self._last_line = now
            self._print(text)

    def _print(self, text: str) -> None:
        # A reader that went away (a closed pipe) must not take the server with it.
        with contextlib.suppress(BrokenPipeError):
            self._rich.print(text, markup=False)

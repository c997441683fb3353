"""An event that becomes readable when someone sets it, or at a point in time."""

from __future__ import annotations

import os
import threading
import time


class Alarm:
    """A pipe to block on in ``poll`` or ``select``, for events from other threads and for deadlines."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._condition = threading.Condition()
        self._deadline: float | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def fileno(self) -> int:
        return self._read

    def set(self) -> None:
        """Make the event readable. From any thread."""
        with self._condition:
            self._ring()

    def set_at(self, deadline: float | None) -> None:
        """Make it readable at this ``time.monotonic()`` too; ``None`` takes the last deadline back."""
        with self._condition:
            self._deadline = deadline
            if deadline is not None and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="grammar-deadline", daemon=True)
                self._thread.start()
            self._condition.notify()

    def clear(self) -> None:
        """Make it unreadable again."""
        try:
            while len(os.read(self._read, 4096)) == 4096:
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        with self._condition:
            self._is_closed = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join(timeout=5)
        os.close(self._read)
        os.close(self._write)

    def _run(self) -> None:
        with self._condition:
            while not self._is_closed:
                now = time.monotonic()
                if self._deadline is not None and now >= self._deadline:
                    self._deadline = None
                    self._ring()
                self._condition.wait(None if self._deadline is None else self._deadline - now)

    def _ring(self) -> None:
        if self._is_closed:
            return
        try:
            os.write(self._write, b"a")
        except BlockingIOError:
            return  # readable already, many times over

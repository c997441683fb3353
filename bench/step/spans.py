"""Where the time of one thread goes: named spans, each without the spans inside it."""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any


class Spans:
    """
    Adds up seconds by part, of the thread that made it: what its helpers do, it waits for in a part of its own.

    Parameters
    ----------
    synchronize
        Called at every border of a span, so that work queued on a device counts where it was queued. The waits it
        adds make the whole slower than an unmeasured step on such a device.
    clock
        Seconds, monotonic.
    """

    def __init__(
        self, synchronize: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._synchronize = synchronize
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0
        self._thread = threading.get_ident()
        self._undo: list[Callable[[], None]] = []

    def wrap(self, owner: object, name: str, part: str) -> None:
        """Make every call of ``owner.name`` a span of ``part``: of an object, a class or a module.

        Raises
        ------
        AttributeError
            When there is no such function: a part that is measured no more must not read as free.
        """
        function: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(function)
        def timed(*args: Any, **keywords: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*args, **keywords)
            self._book()
            self._open.append(part)
            try:
                return function(*args, **keywords)
            finally:
                self._book()
                self._open.pop()

        own = vars(owner)
        was_own, before = name in own, own.get(name)
        is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(timed) if is_static else timed)
        self._undo.append(lambda: setattr(owner, name, before) if was_own else delattr(owner, name))

    def unwrap(self) -> None:
        """Leave every wrapped function as it was."""
        while self._undo:
            self._undo.pop()()

    def take(self) -> dict[str, float]:
        """Seconds by part since the last call."""
        taken, self._seconds = self._seconds, {}
        return taken

    def _book(self) -> None:
        """Give the time since the last border to the innermost open span."""
        self._synchronize()
        now = self._clock()
        if self._open:
            part = self._open[-1]
            self._seconds[part] = self._seconds.get(part, 0.0) + now - self._since
        self._since = now

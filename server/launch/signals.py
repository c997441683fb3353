"""Signals as something a loop can wait for."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator
from types import FrameType

_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class SignalQueue:
    """Signals that asked this process to stop, in order; readable through :meth:`fileno`."""

    def __init__(self, receiver: socket.socket) -> None:
        self._receiver = receiver

    def fileno(self) -> int:
        return self._receiver.fileno()

    def take(self) -> list[int]:
        """The signals since the last call."""
        try:
            return [number for number in self._receiver.recv(64) if number in _STOPPING]
        except BlockingIOError:
            return []


@contextlib.contextmanager
def queued_signals() -> Iterator[SignalQueue]:
    """Inside the block SIGTERM, SIGINT and SIGHUP are queued instead of ending the process.

    One that the process was started to ignore (``nohup``) stays ignored.
    """
    receiver, sender = socket.socketpair()
    receiver.setblocking(False)
    sender.setblocking(False)
    handled = [number for number in _STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
    previous_fd = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    previous = {number: signal.signal(number, _noted_by_wakeup_fd) for number in handled}
    try:
        yield SignalQueue(receiver)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous_fd)
        receiver.close()
        sender.close()


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Inside the block SIGTERM unwinds the stack, so that what is half done is cleaned up."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _noted_by_wakeup_fd(number: int, frame: FrameType | None) -> None:
    pass

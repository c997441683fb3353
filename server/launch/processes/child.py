"""One supervised process."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal

from server.engine.silence import Silence
from server.launch.processes.status import Failed, Ready, Status, decode_status

Role = Literal["http", "scheduler"]

# Never fork: this process has threads, and a child must not inherit its state.
_context = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class ChildSpec:
    """How to start a process; ``target`` is called with ``arguments`` and the pipe to report on."""

    name: str
    role: Role
    target: Callable[..., None]
    arguments: tuple[Any, ...]
    silence_limit: float | None = None
    """Seconds without a message after which the process, once ready, counts as hung. ``None``: it need not speak."""
    start_limit: float | None = None
    """Seconds in which it must become ready. ``None``: loading may take any time."""
    group: str | None = None
    """Processes of one group are stopped and started together. ``None``: it is alone."""

    @property
    def group_name(self) -> str:
        return self.name if self.group is None else self.group


class Child:
    """A started process, what it said last, and why it ended."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.is_ready = False
        self.started_at = time.monotonic()
        self.failure: str | None = None
        self.silence = None if spec.silence_limit is None else Silence(spec.silence_limit)
        self.status, sender = _context.Pipe(duplex=False)
        self.process: BaseProcess = _context.Process(target=spec.target, args=(*spec.arguments, sender), name=spec.name)
        # A terminal sends Ctrl-C to every process of the group. The children's mask is inherited, so they never see
        # it: the supervisor alone decides how the server stops.
        resource_tracker.ensure_running()  # starting it later would unblock the signal again
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        sender.close()  # only the child holds it now, so that its end shows

    def receive(self) -> list[Status]:
        """Every message that has come, without waiting."""
        messages: list[Status] = []
        while not self.status.closed:
            try:
                if not self.status.poll():
                    break
                message = decode_status(self.status.recv_bytes())
            except (EOFError, OSError):
                self.status.close()
                break
            messages.append(message)
            if self.silence is not None:
                self.silence.heard()
            if isinstance(message, Ready):
                self.is_ready = True
            elif isinstance(message, Failed):
                self.failure = message.message
        return messages

    def next_look(self) -> float | None:
        """Seconds after which :meth:`kill_if_hung` should be asked again; ``None``: it need not be."""
        if self.spec.start_limit is not None and not self.is_ready:
            return max(0.0, self.started_at + self.spec.start_limit - time.monotonic())
        return None if self.silence is None else self.silence.interval

    def kill_if_hung(self) -> None:
        """Stop a process that has been silent, or starting, for too long; its death is then seen like any other."""
        if self.failure is not None:
            return
        limit = self.spec.start_limit
        if self.is_ready:
            if self.silence is not None and self.silence.is_too_long():
                self.failure = f"it did nothing for {self.silence.limit:g} s and was killed"
                self.kill()
        elif limit is not None and time.monotonic() - self.started_at > limit:
            self.failure = f"the {self.spec.name} process was not ready within {limit:g} s and was killed"
            self.kill()

    def cause_of_death(self) -> str:
        """Exit code or signal in words."""
        code = self.process.exitcode
        if code is None:
            return "still running"
        if code >= 0:
            return f"exited with code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = " (on Linux often because the machine ran out of memory)" if -code == signal.SIGKILL else ""
        return f"was killed by {name}{hint}"

    def terminate(self) -> None:
        """Ask it to stop (SIGTERM)."""
        self.process.terminate()

    def kill(self) -> None:
        """Stop it now (SIGKILL)."""
        self.process.kill()

    def reap(self) -> None:
        """Wait for its end and free what it held here."""
        self.process.join()
        if not self.status.closed:
            self.status.close()


def waitables(child: Child) -> list[Connection | int]:
    """What becomes readable when the child says something or dies."""
    return [child.process.sentinel, *([] if child.status.closed else [child.status])]

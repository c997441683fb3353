"""Keeps the processes of a server running, and stops them together.

One loop waits for children's messages, their deaths, signals and due restarts; everything happens in it.
"""

from __future__ import annotations

import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait

from server.launch import exit_codes
from server.launch.child import Child, ChildSpec, Role, waitables
from server.launch.console import Console
from server.launch.restarts import RestartPolicy
from server.launch.signals import SignalQueue
from server.launch.status import Loading

_logger = logging.getLogger("scansion.supervisor")

_HTTP_GRACE_SECONDS = 10.0  # beyond the drain timeout, which the HTTP processes keep themselves
_SCHEDULER_STOP_SECONDS = 5.0


class Supervisor:
    """Runs one process for each spec until a signal asks it to stop or a process cannot be kept alive.

    Parameters
    ----------
    specs
        The processes.
    listener
        Closed here when draining begins, so that new clients are refused instead of waiting for nobody.
    on_ready
        Called once, when every process has said that it is ready.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        listener: socket.socket,
        console: Console,
        drain_timeout: float,
        on_ready: Callable[[], None],
        policy: Callable[[], RestartPolicy] = RestartPolicy,
    ) -> None:
        self._specs = list(specs)
        self._listener = listener
        self._console = console
        self._drain_timeout = drain_timeout
        self._on_ready = on_ready
        self._policies = {spec.name: policy() for spec in specs}
        self._children: dict[str, Child] = {}
        self._due: dict[str, float] = {}
        self._was_ready: set[str] = set()
        self._announced = False

    def run(self, signals: SignalQueue) -> int:
        """Start everything, supervise, stop everything; returns one of :mod:`server.launch.exit_codes`."""
        try:
            for spec in self._specs:
                self._start(spec)
            code: int | None = None
            while code is None:
                wait([*self._waitables(), signals.fileno()], self._next_look())
                if taken := signals.take():
                    return self._stop(signals, taken)
                self._hear()
                for child in self._children.values():
                    child.kill_if_hung()
                code = self._replace_dead()
                self._start_due()
            return code
        finally:
            self._kill_all()

    def _start(self, spec: ChildSpec) -> None:
        self._children[spec.name] = Child(spec)

    def _waitables(self) -> list[Connection | int]:
        return [item for child in self._children.values() for item in waitables(child)]

    def _next_look(self) -> float | None:
        """Seconds until something is due although nothing happened."""
        times = [max(0.0, due - time.monotonic()) for due in self._due.values()]
        times += [child.silence.interval for child in self._children.values() if child.silence is not None]
        return min(times, default=None)

    def _hear(self) -> None:
        for child in self._children.values():
            was_ready = child.is_ready
            for message in child.receive():
                if isinstance(message, Loading) and not self._announced:
                    self._console.load(message.stage, message.fraction)
            if child.is_ready and not was_ready:
                if child.spec.name in self._was_ready:
                    seconds = time.monotonic() - child.started_at
                    _logger.info("%s is ready again after %.1f s", child.spec.name, seconds)
                self._was_ready.add(child.spec.name)
        if not self._announced and len(self._was_ready) == len(self._specs):
            self._announced = True
            self._console.finish_stage()
            self._on_ready()

    def _replace_dead(self) -> int | None:
        """Plan a restart of each process that died; returns an exit code when there can be none."""
        for name, child in list(self._children.items()):
            if child.process.is_alive():
                continue
            child.receive()  # its last words may have come after the last look
            child.reap()
            del self._children[name]
            cause = child.cause_of_death() if child.failure is None else child.failure
            if name not in self._was_ready:
                # It never worked, so starting it again would not help.
                self._console.fail(child.failure or f"the {name} process {cause} while it started")
                return exit_codes.FAILED_TO_START
            _logger.error("%s (process %s) died: %s", name, child.process.pid, cause)
            pause = self._policies[name].next_pause(time.monotonic())
            if pause is None:
                self._console.fail(
                    f"the {name} process died too often and is not started again. The last time: {cause}"
                )
                return exit_codes.KEEPS_CRASHING
            _logger.info("restarting %s %s", name, f"in {pause:g} s" if pause else "now")
            self._due[name] = time.monotonic() + pause
        return None

    def _start_due(self) -> None:
        now = time.monotonic()
        for spec in self._specs:
            if self._due.get(spec.name, now + 1) <= now:
                del self._due[spec.name]
                self._start(spec)

    def _stop(self, signals: SignalQueue, taken: list[int]) -> int:
        """Drain on the first signal; at once on a second."""
        if len(taken) > 1:
            return exit_codes.stopped_at_once(taken[1])
        self._console.finish_stage()
        name = signal.Signals(taken[0]).name
        _logger.info("%s: letting running requests end; a second signal stops at once", name)
        self._listener.close()
        if not self._announced:
            self._kill("scheduler")  # it is loading: nothing can be running
        order: tuple[tuple[Role, float], ...] = (
            ("http", self._drain_timeout + _HTTP_GRACE_SECONDS),
            ("scheduler", _SCHEDULER_STOP_SECONDS),
        )
        for role, seconds in order:
            again = self._stop_role(role, seconds, signals)
            if again is not None:
                return exit_codes.stopped_at_once(again)
        _logger.info("stopped")
        return exit_codes.STOPPED

    def _stop_role(self, role: Role, seconds: float, signals: SignalQueue) -> int | None:
        """Ask the processes of a role to stop and wait; returns a signal that came meanwhile."""
        children = [child for child in self._children.values() if child.spec.role == role]
        for child in children:
            child.terminate()
        deadline = time.monotonic() + seconds
        while alive := [child for child in children if child.process.is_alive()]:
            left = deadline - time.monotonic()
            if left <= 0:
                for child in alive:
                    _logger.warning("%s did not stop within %g s: killing it", child.spec.name, seconds)
                    child.kill()
                return None
            wait([*(child.process.sentinel for child in alive), signals.fileno()], left)
            if taken := signals.take():
                return taken[0]
        return None

    def _kill(self, role: Role) -> None:
        for child in self._children.values():
            if child.spec.role == role:
                child.kill()

    def _kill_all(self) -> None:
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.reap()
        self._children.clear()
        self._listener.close()

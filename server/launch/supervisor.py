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
from server.launch.console import Console
from server.launch.processes.child import Child, ChildSpec, Role, waitables
from server.launch.processes.restarts import RestartPolicy
from server.launch.processes.status import Loading
from server.launch.signals import SignalQueue

_logger = logging.getLogger("scansion.supervisor")

_HTTP_GRACE_SECONDS = 10.0  # beyond the drain timeout, which the HTTP processes keep themselves
_SCHEDULER_STOP_SECONDS = 5.0
_LONGEST_PAUSE = 60.0  # for what keeps crashing while another group serves


class Supervisor:
    """Runs one process for each spec until a signal asks it to stop or a process cannot be kept alive.

    Processes of one group are started together, and stopped together when one of them dies.

    Parameters
    ----------
    specs
        The processes.
    listener
        Closed here when draining begins, so that new clients are refused instead of waiting for nobody. ``None`` where
        nobody listens.
    on_ready
        Called once, when every process has said that it is ready.
    policy
        Makes the restart policy of each group.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        listener: socket.socket | None,
        console: Console,
        drain_timeout: float,
        on_ready: Callable[[], None],
        policy: Callable[[], RestartPolicy] = RestartPolicy,
    ) -> None:
        self._groups: dict[str, list[ChildSpec]] = {}
        for spec in specs:
            self._groups.setdefault(spec.group_name, []).append(spec)
        self._listener = listener
        self._console = console
        self._drain_timeout = drain_timeout
        self._on_ready = on_ready
        self._policies = {group: policy() for group in self._groups}
        self._children: dict[str, Child] = {}
        self._due: dict[str, float] = {}
        self._was_ready: set[str] = set()
        self._announced = False

    def run(self, signals: SignalQueue) -> int:
        """Start everything, supervise, stop everything; returns one of :mod:`server.launch.exit_codes`."""
        try:
            for group in self._groups:
                self._start(group)
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

    def _start(self, group: str) -> None:
        for spec in self._groups[group]:
            self._children[spec.name] = Child(spec)

    def _members(self, group: str) -> list[Child]:
        return [child for child in self._children.values() if child.spec.group_name == group]

    def _is_ready(self, group: str) -> bool:
        members = self._members(group)
        return bool(members) and all(child.is_ready for child in members)

    def _waitables(self) -> list[Connection | int]:
        return [item for child in self._children.values() for item in waitables(child)]

    def _next_look(self) -> float | None:
        """Seconds until something is due although nothing happened."""
        times = [max(0.0, due - time.monotonic()) for due in self._due.values()]
        times += [seconds for child in self._children.values() if (seconds := child.next_look()) is not None]
        return min(times, default=None)

    def _hear(self) -> None:
        shown = next(iter(self._children), None)  # ranks load alike: the first speaks for all
        for group in self._groups:
            was_ready = self._is_ready(group)
            for child in self._members(group):
                for message in child.receive():
                    if isinstance(message, Loading) and not self._announced and child.spec.name == shown:
                        self._console.load(message.stage, message.fraction)
            if not was_ready and self._is_ready(group):
                if group in self._was_ready:
                    seconds = time.monotonic() - min(child.started_at for child in self._members(group))
                    _logger.info("%s is ready again after %.1f s", group, seconds)
                self._was_ready.add(group)
        if not self._announced and len(self._was_ready) == len(self._groups):
            self._announced = True
            self._console.finish_stage()
            self._on_ready()

    def _replace_dead(self) -> int | None:
        """Plan a restart of each group with a process that died; returns an exit code when there can be none."""
        for group in self._groups:
            dead = [child for child in self._members(group) if not child.process.is_alive()]
            if not dead:
                continue
            for child in dead:
                child.receive()  # its last words may have come after the last look
            if self._is_ready(group):
                self._was_ready.add(group)
            first = min(dead, key=_is_consequence)
            name = first.spec.name
            self._end(group)
            cause = first.cause_of_death() if first.failure is None else first.failure
            if group not in self._was_ready:
                # It never worked, so starting it again would not help.
                self._console.fail(first.failure or f"the {name} process {cause} while it started")
                return exit_codes.FAILED_TO_START
            _logger.error("%s (process %s) died: %s", name, first.process.pid, cause)
            pause = self._policies[group].next_pause(time.monotonic())
            if pause is None:
                if not self._another_serves(group):
                    often = "too often " if self._policies[group].max_crashes > 1 else ""
                    self._console.fail(f"the {name} process died {often}and is not started again. The cause: {cause}")
                    return exit_codes.KEEPS_CRASHING
                pause = _LONGEST_PAUSE
            _logger.info("restarting %s %s", group, f"in {pause:g} s" if pause else "now")
            self._due[group] = time.monotonic() + pause
        return None

    def _end(self, group: str) -> None:
        """Kill what is left of a group, and wait until all of it is gone: its successors need the devices."""
        members = self._members(group)
        for child in members:
            child.kill()
        for child in members:
            child.reap()
            del self._children[child.spec.name]

    def _another_serves(self, group: str) -> bool:
        role = self._groups[group][0].role
        return any(
            other != group and specs[0].role == role and self._is_ready(other) for other, specs in self._groups.items()
        )

    def _start_due(self) -> None:
        now = time.monotonic()
        for group in self._groups:
            if self._due.get(group, now + 1) <= now:
                del self._due[group]
                self._start(group)

    def _stop(self, signals: SignalQueue, taken: list[int]) -> int:
        """Drain on the first signal; at once on a second."""
        if len(taken) > 1:
            return exit_codes.stopped_at_once(taken[1])
        self._console.finish_stage()
        name = signal.Signals(taken[0]).name
        loading = [group for group in self._groups if not self._is_ready(group)]
        serves = any(specs[0].role == "scheduler" and group not in loading for group, specs in self._groups.items())
        if serves:
            _logger.info("%s: letting running requests end; a second signal stops at once", name)
        else:
            _logger.info("%s: stopping", name)
        self._close_listener()
        for group in loading:
            self._end(group)  # nothing can be running there
        drain = self._drain_timeout + _HTTP_GRACE_SECONDS
        # Without an HTTP port here, rank 0 is elsewhere: the ranks leave when it does, unless it is not being stopped.
        order: tuple[tuple[Role, float], ...] = (
            ("http", drain),
            ("scheduler", drain if self._listener is None else _SCHEDULER_STOP_SECONDS),
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

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _kill_all(self) -> None:
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.reap()
        self._children.clear()
        self._close_listener()


def _is_consequence(child: Child) -> bool:
    """Whether a rank that died may have done so because another did: then the other's end is the one to tell."""
    return child.failure is None and (child.process.exitcode or 0) >= 0

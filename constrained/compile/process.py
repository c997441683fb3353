"""One compile process, as the scheduler sees it: its socket, its job, and the CPU time that it has used."""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from constrained.compile.failures import timed_out, too_much_work
from constrained.compile.protocol import HEADER_BYTES, CompileJob, CompileResult, Exited, frame, frame_length
from constrained.config import GrammarConfig
from constrained.errors import GrammarError, GrammarTooLargeError
from constrained.spec import GrammarSpec

_MAX_REPLY_BYTES = 1 << 30
_UNDISTURBED_SECONDS = 1.0
_TURN_SECONDS = 0.1
_DEADLINE_SHARE = 0.95
"""Of a request's time, what a compile may have: its end must be known before the request's own time is over."""
_WORK_SHARE = 0.8
"""Of a compile's time, what it must have run on a core for the grammar to be at fault, and not a busy machine."""


@dataclass(eq=False)
class Job:
    """A specification and who waits for it."""

    spec: GrammarSpec
    future: Future[CompileResult]
    tries: int = 0
    arrived: float = field(default_factory=time.monotonic)

    @property
    def is_cancelled(self) -> bool:
        return self.future.cancelled()

    def resolve(self, result: CompileResult) -> None:
        if not self.is_cancelled and self.future.set_running_or_notify_cancel():
            self.future.set_result(result)

    def fail(self, error: GrammarError) -> None:
        if not self.is_cancelled and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


@dataclass(eq=False)
class CompileProcess:
    """Used by the pool's thread alone."""

    key: int
    connection: socket.socket
    pid: int | None = None
    """Unknown until the zygote has answered."""
    job: Job | None = None
    started: float = 0.0
    """When it was given its job."""
    deadline: float = 0.0
    next_cpu_check: float = 0.0
    is_demoted: bool = False
    """In the kernel's idle class, from which nothing brings it back."""
    is_paused: bool = False
    next_turn: float = 0.0
    """When a slow compile stops or goes on, while answers are written."""
    is_doomed: bool = False
    """Killed, or to be killed as soon as its id is known."""
    exit: Exited | None = None
    _cpu_at_start: float = 0.0
    _received: bytearray = field(default_factory=bytearray)
    _to_send: bytearray = field(default_factory=bytearray)

    @property
    def is_free(self) -> bool:
        return self.job is None and self.pid is not None and not self.is_doomed

    @property
    def is_slow(self) -> bool:
        """Whether its compile takes more than an ordinary grammar does."""
        return self.job is not None and self.is_demoted and not self.is_doomed

    @property
    def is_closed(self) -> bool:
        return self.connection.fileno() < 0

    def give(self, job: Job, config: GrammarConfig) -> None:
        self.job = job
        self.started = time.monotonic()
        self.deadline = self.started + _DEADLINE_SHARE * config.timeout
        self._cpu_at_start = _cpu_seconds(self.pid)
        self.next_cpu_check = self.started + config.normal_priority_seconds
        self._to_send += frame(CompileJob(job.spec))

    def take_job(self) -> Job | None:
        job, self.job = self.job, None
        return job

    def send(self) -> bool:
        """Write what the socket takes; whether something is left."""
        try:
            while self._to_send:
                del self._to_send[: self.connection.send(self._to_send)]
        except BlockingIOError:
            return True
        except OSError:
            self._to_send.clear()  # the end of the process shows on the reading side
        return False

    def receive(self) -> bytes | None:
        """A whole reply, or ``None`` so far.

        Raises
        ------
        EOFError
            The process has closed its end.
        GrammarTooLargeError
            The reply that it announces is too long.
        """
        try:
            data = self.connection.recv(1 << 20)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            raise EOFError
        self._received += data
        if len(self._received) < HEADER_BYTES:
            return None
        length = frame_length(self._received[:HEADER_BYTES])
        if length > _MAX_REPLY_BYTES:
            raise GrammarTooLargeError("the compiled grammar is too large")
        if len(self._received) - HEADER_BYTES < length:
            return None
        reply = bytes(memoryview(self._received)[HEADER_BYTES : HEADER_BYTES + length])
        self._received.clear()
        return reply

    def cpu_used(self) -> float:
        """CPU seconds that its compile has taken so far."""
        return _cpu_seconds(self.pid) - self._cpu_at_start

    def overdue(self, config: GrammarConfig) -> GrammarError:
        """Why its compile ends at its deadline: the grammar needs too much work, or the machine was busy."""
        work = _WORK_SHARE * _DEADLINE_SHARE * config.timeout
        return too_much_work(work) if self.cpu_used() >= work else timed_out(config.timeout)

    def has_had_its_time(self, now: float, seconds: float) -> bool:
        """Whether a slow compile has run for ``seconds``, a quarter of them on a core.

        That is what it gets while answers are written. Where a busy machine gives it less, it has five times as long.
        """
        run = now - self.started
        return self.is_slow and run >= seconds and (self.cpu_used() >= seconds / 4 or run >= 5 * seconds)

    def check_cpu(self, now: float, normal_seconds: float) -> None:
        """Once ``normal_seconds`` of CPU are used, move it to the idle class; else look again when they may be."""
        left = normal_seconds - self.cpu_used()
        if left > 0:
            self.next_cpu_check = now + max(left, 0.001)
            return
        self.is_demoted = True
        self.next_turn = self.started + _UNDISTURBED_SECONDS
        _to_idle_class(self.pid)

    def takes_turns(self, now: float, is_decoding: bool) -> bool:
        """Whether a slow compile stops or goes on now: while answers are written it runs a quarter of the time."""
        if not self.is_slow or now < self.next_turn:
            return False
        was_paused, self.is_paused = self.is_paused, is_decoding and not self.is_paused
        self.next_turn = now + (3 * _TURN_SECONDS if self.is_paused else _TURN_SECONDS)
        return was_paused is not self.is_paused


def _cpu_seconds(pid: int | None) -> float:
    """CPU time of another process. The clock id is that of clock_getcpuclockid(3)."""
    if pid is None:
        return 0.0
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def _to_idle_class(pid: int | None) -> None:
    """Every thread of a process runs only when nothing else wants the core (sched(7), SCHED_IDLE)."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        return  # it ended just now

"""The scheduler's side of the compile processes: a warm pool whose every member may be killed.

One thread owns everything here; others only put jobs into its inbox. A job that uses more CPU than an ordinary grammar
needs falls to the kernel's idle class and no longer counts as one of the warm workers, so that the next job finds a
fresh one; a job whose future is cancelled, or that passes its deadline, ends with its process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec

from constrained.compile_protocol import (
    HEADER_BYTES,
    CompileJob,
    CompileRefusal,
    CompileReply,
    CompileResult,
    Exited,
    Forked,
    decode_reply,
    frame,
    frame_length,
)
from constrained.environment import GrammarEnvironment
from constrained.errors import (
    GrammarCompilerCrashedError,
    GrammarDisplacedError,
    GrammarError,
    GrammarServiceUnavailableError,
    GrammarTimeoutError,
    GrammarTooLargeError,
    InvalidGrammarError,
)
from constrained.spec import GrammarSpec
from constrained.stats import GrammarMetrics
from constrained.zygote_client import ZygoteClient, ZygoteGoneError

logger = logging.getLogger(__name__)

_MAX_REPLY_BYTES = 1 << 30
_MAX_FAILED_STARTS = 3
_DISPLACED = (
    "compiling it was ended after {:.1f} s because every compile process was busy with slow grammars and other "
    "requests waited; try again later, or simplify it"
)


@dataclass(eq=False)
class _Job:
    spec: GrammarSpec
    future: Future[CompileResult]
    tries: int = 0


@dataclass(eq=False)
class _Worker:
    key: int
    connection: socket.socket
    pid: int | None = None
    """Unknown until the zygote has answered."""
    job: _Job | None = None
    started: float = 0.0
    """When it was given its job."""
    deadline: float = 0.0
    cpu_at_start: float = 0.0
    next_cpu_check: float = 0.0
    is_demoted: bool = False
    is_doomed: bool = False
    """Killed, or to be killed as soon as its id is known."""
    received: bytearray = field(default_factory=bytearray)
    to_send: bytearray = field(default_factory=bytearray)
    exit: Exited | None = None
    error: GrammarError | None = None
    """What its job ends with when the process is gone."""


class CompilePool:
    """Compiles specifications in processes.

    Parameters
    ----------
    environment
        Vocabulary and options; sent to the processes once.
    metrics
        Counts compiles, crashes and restarts.
    """

    def __init__(self, environment: GrammarEnvironment, metrics: GrammarMetrics | None = None) -> None:
        self._environment = environment
        self._config = environment.config
        self._metrics = metrics or GrammarMetrics()
        self._inbox: deque[_Job] = deque()
        self._waiting: deque[_Job] = deque()
        self._workers: dict[int, _Worker] = {}
        self._next_key = 0
        self._zygote = ZygoteClient(environment)
        self._is_closing = False
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="grammar-compile-pool", daemon=True)
        self._thread.start()

    def submit(self, spec: GrammarSpec) -> Future[CompileResult]:
        """Compile in a process. The future raises :class:`GrammarError`; cancelling it ends the compile."""
        future: Future[CompileResult] = Future()
        if self._is_closing:
            future.set_exception(GrammarServiceUnavailableError("the server is shutting down"))
            return future
        self._inbox.append(_Job(spec, future))
        future.add_done_callback(self._wake_if_cancelled)
        self._wake()
        return future

    def worker_pids(self) -> list[int]:
        """Ids of the live compile processes."""
        return [worker.pid for worker in list(self._workers.values()) if worker.pid is not None]

    def shutdown(self) -> None:
        """End every process; jobs that wait or run fail."""
        self._is_closing = True
        self._wake()
        self._thread.join(timeout=10)

    # the pool's thread

    def _run(self) -> None:
        try:
            while not self._is_closing:
                try:
                    self._turn()
                except ZygoteGoneError:
                    self._lose_zygote()
                except Exception:
                    # A fault of ours must not leave every later request waiting: start afresh.
                    logger.exception("the grammar compile pool failed")
                    self._lose_zygote()
        finally:
            self._close()

    def _turn(self) -> None:
        self._collect_inbox()
        self._balance()
        self._assign()
        self._displace()
        for key, events in self._selector.select(self._next_timer()):
            if key.fileobj == self._wake_read:
                os.read(self._wake_read, 4096)
            elif key.fileobj is self._zygote.control:
                self._hear_zygote()
            else:
                worker = next((w for w in self._workers.values() if w.connection is key.fileobj), None)
                if worker is not None and events & selectors.EVENT_WRITE:
                    self._send(worker)
                if worker is not None and events & selectors.EVENT_READ:
                    self._receive(worker)
        self._check_jobs()

    def _collect_inbox(self) -> None:
        while self._inbox:
            self._waiting.append(self._inbox.popleft())

    def _balance(self) -> None:
        """Start what is missing: the zygote, and warm workers up to the bound."""
        if self._zygote.control is None and time.monotonic() >= self._zygote.next_start:
            self._selector.register(self._zygote.start(), selectors.EVENT_READ)
        if not self._zygote.is_ready:
            return
        warm = sum(not (w.is_demoted or w.is_doomed) for w in self._workers.values())
        while warm < self._config.compile_workers and len(self._workers) < self._config.max_compile_workers:
            connection = self._zygote.fork(self._next_key)
            self._selector.register(connection, selectors.EVENT_READ)
            self._workers[self._next_key] = _Worker(self._next_key, connection)
            self._next_key += 1
            warm += 1

    def _assign(self) -> None:
        for worker in self._workers.values():
            if worker.job is None and worker.pid is not None and not worker.is_doomed:
                job = self._next_job()
                if job is None:
                    return
                worker.job = job
                worker.started = time.monotonic()
                worker.deadline = worker.started + self._config.timeout
                worker.cpu_at_start = _cpu_seconds(worker.pid)
                worker.next_cpu_check = worker.started + self._config.normal_priority_seconds
                worker.to_send += frame(CompileJob(job.spec))
                self._metrics.add("grammar_compiles_total")
                self._send(worker)

    def _displace(self) -> None:
        """Where slow compiles hold every place, the one that has run longest makes room for a request that waits.

        Without this as many endless compiles as there are places would hold up everyone else until their deadline.
        """
        if len(self._workers) < self._config.max_compile_workers:
            return
        num_coming = sum(worker.job is None for worker in self._workers.values())  # new ones and replaced ones
        num_wanted = sum(not job.future.cancelled() for job in self._waiting) - num_coming
        latest = time.monotonic() - self._config.displace_after_seconds
        slow = sorted(self._slow_workers(), key=lambda worker: worker.started)
        for worker in slow[: max(0, num_wanted)]:
            if worker.started <= latest:
                self._metrics.add("grammar_compiles_displaced_total")
                self._kill(worker, GrammarDisplacedError(_DISPLACED.format(time.monotonic() - worker.started)))

    def _slow_workers(self) -> list[_Worker]:
        return [w for w in self._workers.values() if w.job is not None and w.is_demoted and not w.is_doomed]

    def _next_job(self) -> _Job | None:
        while self._waiting:
            job = self._waiting.popleft()
            if not job.future.cancelled():
                return job
        return None

    def _next_timer(self) -> float | None:
        now = time.monotonic()
        busy = [w for w in self._workers.values() if w.job is not None and not w.is_doomed]
        if self._zygote.control is None:
            return max(0.0, self._zygote.next_start - now)
        times = [w.deadline for w in busy] + [w.next_cpu_check for w in busy if not w.is_demoted]
        if self._waiting:
            ripe = [worker.started + self._config.displace_after_seconds for worker in self._slow_workers()]
            times += [moment for moment in ripe if moment > now]  # what is ripe waits for places that are coming
        return max(0.0, min(times) - now) if times else None

    def _check_jobs(self) -> None:
        """Cancelled jobs, deadlines, and the step down to the idle class."""
        now = time.monotonic()
        for worker in list(self._workers.values()):
            job = worker.job
            if job is None or worker.is_doomed or worker.pid is None:
                continue
            if job.future.cancelled():
                self._metrics.add("grammar_compiles_cancelled_total")
                self._kill(worker, GrammarError("cancelled"))
            elif now >= worker.deadline:
                self._kill(worker, GrammarTimeoutError(timeout_message(self._config.timeout)))
            elif not worker.is_demoted and now >= worker.next_cpu_check:
                left = self._config.normal_priority_seconds - (_cpu_seconds(worker.pid) - worker.cpu_at_start)
                if left <= 0:
                    worker.is_demoted = True
                    _to_idle_class(worker.pid)
                else:
                    worker.next_cpu_check = now + max(left, 0.001)

    def _send(self, worker: _Worker) -> None:
        try:
            while worker.to_send:
                del worker.to_send[: worker.connection.send(worker.to_send)]
        except BlockingIOError:
            pass
        except OSError:
            worker.to_send.clear()  # the end of the process shows on the reading side
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.to_send else 0)
        self._selector.modify(worker.connection, events)

    def _receive(self, worker: _Worker) -> None:
        try:
            data = worker.connection.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(worker.connection)
            worker.connection.close()
            worker.is_doomed = True
            self._bury(worker)
            return
        worker.received += data
        if len(worker.received) < HEADER_BYTES:
            return
        length = frame_length(worker.received[:HEADER_BYTES])
        if length > _MAX_REPLY_BYTES:
            self._kill(worker, GrammarTooLargeError("the compiled grammar is too large"))
        elif len(worker.received) - HEADER_BYTES >= length:
            reply = bytes(memoryview(worker.received)[HEADER_BYTES : HEADER_BYTES + length])
            worker.received.clear()
            self._finish(worker, reply)

    def _finish(self, worker: _Worker, data: bytes) -> None:
        job, worker.job = worker.job, None
        if worker.is_demoted:
            self._kill(worker, GrammarError("done"))  # nothing brings a process back from the idle class
        if job is None:
            return
        try:
            reply: CompileReply = decode_reply(data)
        except msgspec.DecodeError as error:
            self._kill(worker, GrammarError("done"))
            _fail(job, GrammarCompilerCrashedError(f"the compile process answered nonsense: {error}"))
            return
        match reply:
            case CompileResult():
                self._metrics.add("grammar_compile_seconds_total", reply.compile_seconds)
                if not job.future.cancelled():
                    _resolve(job, reply)
            case CompileRefusal(is_memory=True):
                _fail(job, self._too_large())
            case CompileRefusal(is_permanent=True):
                _fail(job, InvalidGrammarError(reply.message, pointer=reply.pointer, code=reply.code))
            case CompileRefusal():
                _fail(job, GrammarError(reply.message, pointer=reply.pointer, code=reply.code))

    # processes

    def _hear_zygote(self) -> None:
        match self._zygote.receive():
            case Forked(key=key, pid=pid):
                worker = self._workers.get(key)
                if worker is not None:
                    worker.pid = pid
                    if worker.is_doomed:
                        self._zygote.kill(pid)
            case Exited() as exited:
                worker = next((w for w in self._workers.values() if w.pid == exited.pid), None)
                if worker is not None:
                    worker.exit = exited
                    self._bury(worker)
            case _:
                return

    def _kill(self, worker: _Worker, error: GrammarError) -> None:
        """End the process; its job, if it has one, fails with ``error`` at once."""
        job, worker.job = worker.job, None
        worker.is_doomed = True
        if job is not None:
            self._metrics.add("grammar_worker_restarts_total")
            _fail(job, error)
        if worker.pid is not None:
            self._zygote.kill(worker.pid)

    def _bury(self, worker: _Worker) -> None:
        """Forget a process once its socket is closed and its exit status is known."""
        if worker.exit is None or worker.connection.fileno() >= 0:
            return
        self._workers.pop(worker.key, None)
        if worker.job is not None:
            self._metrics.add("grammar_worker_restarts_total")
            self._metrics.add("grammar_worker_crashes_total")
            _fail(worker.job, self._crash_error(worker.exit))

    def _crash_error(self, exited: Exited) -> GrammarError:
        limit = self._config.compile_memory_bytes
        if exited.max_rss_bytes > limit // 2:
            return self._too_large()
        name = signal.Signals(exited.signal).name if exited.signal else "exit"
        return GrammarCompilerCrashedError(
            f"compiling this grammar ended its process ({name}): it is too complex for the grammar engine, or needs "
            f"more than {limit >> 20} MiB; simplify it"
        )

    def _too_large(self) -> GrammarError:
        return GrammarTooLargeError(
            f"compiling this grammar needs more than {self._config.compile_memory_bytes >> 20} MiB; "
            "simplify it (fewer or smaller repetitions, enums and alternatives)"
        )

    def _lose_zygote(self) -> None:
        """The zygote is gone, and every worker with it: start again, and give each job that ran one more try."""
        if self._zygote.control is not None:
            self._selector.unregister(self._zygote.control)
        self._zygote.stop(failed=True)
        self._metrics.add("grammar_worker_restarts_total")
        for worker in self._workers.values():
            if worker.connection.fileno() >= 0:
                self._selector.unregister(worker.connection)
                worker.connection.close()
            if worker.job is not None and worker.job.tries == 0:
                worker.job.tries += 1
                self._waiting.appendleft(worker.job)
            elif worker.job is not None:
                _fail(worker.job, GrammarServiceUnavailableError("the grammar compile process died; try again"))
        self._workers.clear()
        if self._zygote.num_failed_starts >= _MAX_FAILED_STARTS:
            self._collect_inbox()
            while self._waiting:
                _fail(self._waiting.popleft(), GrammarServiceUnavailableError("grammar compile processes do not start"))

    def _close(self) -> None:
        error = GrammarServiceUnavailableError("the server is shutting down")
        self._is_closing = True
        self._collect_inbox()
        for worker in self._workers.values():
            if worker.job is not None:
                self._waiting.append(worker.job)
            worker.connection.close()
        self._workers.clear()
        while self._waiting:
            _fail(self._waiting.popleft(), error)
        self._zygote.stop(failed=False)
        self._selector.close()
        os.close(self._wake_read)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it has been woken often enough
            os.write(self._wake_write, b"w")

    def _wake_if_cancelled(self, future: Future[CompileResult]) -> None:
        if future.cancelled():
            self._wake()


def timeout_message(seconds: float) -> str:
    return f"the grammar was not ready within {seconds:g} s; simplify the schema or grammar, or raise --grammar-timeout"


def _resolve(job: _Job, result: CompileResult) -> None:
    if job.future.set_running_or_notify_cancel():
        job.future.set_result(result)


def _fail(job: _Job, error: GrammarError) -> None:
    if not job.future.cancelled() and job.future.set_running_or_notify_cancel():
        job.future.set_exception(error)


def _cpu_seconds(pid: int) -> float:
    """CPU time of another process. The clock id is that of clock_getcpuclockid(3)."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def _to_idle_class(pid: int) -> None:
    """Every thread of a process runs only when nothing else wants the core (sched(7), SCHED_IDLE)."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        return  # it ended just now

"""The scheduler's side of the compile processes: a warm pool whose every member may be killed.

One thread owns everything here; others only put jobs into its inbox. A job that uses more CPU than an ordinary grammar
needs falls to the kernel's idle class and no longer counts as one of the warm workers, so that the next job finds a
fresh one; while answers are written it also runs a quarter of the time only. A job whose future is cancelled, or that
passes its deadline, ends with its process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
import time
from collections import deque
from concurrent.futures import Future

from constrained.compile.failures import crashed, displaced, refused
from constrained.compile.process import CompileProcess, Job
from constrained.compile.protocol import CompileReply, CompileResult, Exited, Forked, decode_reply
from constrained.compile.zygote_client import ZygoteClient, ZygoteGoneError
from constrained.environment import GrammarEnvironment
from constrained.errors import (
    GrammarCompilerCrashedError,
    GrammarError,
    GrammarServiceUnavailableError,
    GrammarTooLargeError,
)
from constrained.spec import GrammarSpec
from constrained.stats import GrammarMetrics

logger = logging.getLogger(__name__)

_MAX_FAILED_STARTS = 3
_DECODING_SECONDS = 0.2
"""How long after a step answers count as being written."""


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
        self._inbox: deque[Job] = deque()
        self._waiting: deque[Job] = deque()
        self._workers: dict[int, CompileProcess] = {}
        self._next_key = 0
        self._zygote = ZygoteClient(environment)
        self._is_closing = False
        self._last_step = -_DECODING_SECONDS
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
        self._inbox.append(Job(spec, future))
        future.add_done_callback(self._wake_if_cancelled)
        self._wake()
        return future

    def note_step(self) -> None:
        """A decode step was made while a grammar is waited for. Called by the loop; cheap."""
        self._last_step = time.monotonic()

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
            self._workers[self._next_key] = CompileProcess(self._next_key, connection)
            self._next_key += 1
            warm += 1

    def _assign(self) -> None:
        for worker in self._workers.values():
            if worker.is_free:
                job = self._next_job()
                if job is None:
                    return
                worker.give(job, self._config)
                self._metrics.add("grammar_compiles_total")
                self._send(worker)

    def _displace(self) -> None:
        """Where slow compiles hold every place, the one that used most CPU time makes room for a request that waits.

        Without this as many endless compiles as there are places would hold up everyone else until their deadline. A
        request waits as long as a slow compile may run before it takes such a place: where compiles end by
        themselves, places come free in that time and none has to be ended.
        """
        if len(self._workers) < self._config.max_compile_workers:
            return
        now, patience = time.monotonic(), self._config.displace_after_seconds
        num_coming = sum(worker.job is None for worker in self._workers.values())  # new ones and replaced ones
        num_wanted = sum(not job.is_cancelled and now - job.arrived >= patience for job in self._waiting) - num_coming
        if num_wanted <= 0:
            return
        ripe = [worker for worker in self._workers.values() if worker.has_had_its_time(now, patience)]
        for worker in sorted(ripe, key=CompileProcess.cpu_used, reverse=True)[:num_wanted]:
            self._metrics.add("grammar_compiles_displaced_total")
            self._kill(worker, displaced(now - worker.started))

    def _next_job(self) -> Job | None:
        while self._waiting:
            job = self._waiting.popleft()
            if not job.is_cancelled:
                return job
        return None

    def _next_timer(self) -> float | None:
        now = time.monotonic()
        busy = [w for w in self._workers.values() if w.job is not None and not w.is_doomed]
        if self._zygote.control is None:
            return max(0.0, self._zygote.next_start - now)
        times = [w.deadline for w in busy] + [w.next_turn if w.is_demoted else w.next_cpu_check for w in busy]
        return max(0.0, min(times) - now) if times else None

    def _check_jobs(self) -> None:
        """Cancelled jobs, deadlines, and the step down to the idle class."""
        now = time.monotonic()
        for worker in list(self._workers.values()):
            if worker.job is None or worker.is_doomed or worker.pid is None:
                continue
            if worker.job.is_cancelled:
                self._metrics.add("grammar_compiles_cancelled_total")
                self._kill(worker, GrammarError("cancelled"))
            elif now >= worker.deadline:
                self._kill(worker, worker.overdue(self._config))
            elif not worker.is_demoted and now >= worker.next_cpu_check:
                worker.check_cpu(now, self._config.normal_priority_seconds)
            elif worker.takes_turns(now, now - self._last_step < _DECODING_SECONDS):
                self._zygote.pause(worker.pid, worker.is_paused)

    def _send(self, worker: CompileProcess) -> None:
        is_something_left = worker.send()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_something_left else 0)
        self._selector.modify(worker.connection, events)

    def _receive(self, worker: CompileProcess) -> None:
        try:
            reply = worker.receive()
        except EOFError:
            self._selector.unregister(worker.connection)
            worker.connection.close()
            worker.is_doomed = True
            self._bury(worker)
        except GrammarTooLargeError as error:
            self._kill(worker, error)
        else:
            if reply is not None:
                self._finish(worker, reply)

    def _finish(self, worker: CompileProcess, reply: bytes) -> None:
        job = worker.take_job()
        is_sane = job is None or self._answer(job, reply)
        if worker.is_demoted or not is_sane:
            self._kill(worker, GrammarError("done"))

    def _answer(self, job: Job, data: bytes) -> bool:
        """Tell who waits; whether the reply made sense. Raises nothing: the job has no other place any more."""
        try:
            reply: CompileReply = decode_reply(data)
        except Exception as error:
            job.fail(GrammarCompilerCrashedError(f"the compile process answered nonsense: {error}"))
            return False
        if isinstance(reply, CompileResult):
            self._metrics.add("grammar_compile_seconds_total", reply.compile_seconds)
            job.resolve(reply)
            return True
        job.fail(refused(reply, self._config))
        return True

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

    def _kill(self, worker: CompileProcess, error: GrammarError) -> None:
        """End the process; its job, if it has one, fails with ``error`` at once."""
        job = worker.take_job()
        worker.is_doomed = True
        if job is not None:
            self._metrics.add("grammar_worker_restarts_total")
            job.fail(error)
        if worker.pid is not None:
            self._zygote.kill(worker.pid)

    def _bury(self, worker: CompileProcess) -> None:
        """Forget a process once its socket is closed and its exit status is known."""
        if worker.exit is None or not worker.is_closed:
            return
        self._workers.pop(worker.key, None)
        job = worker.take_job()
        if job is not None:
            job.fail(crashed(worker.exit, self._config))
            self._metrics.add("grammar_worker_restarts_total")
            self._metrics.add("grammar_worker_crashes_total")

    def _lose_zygote(self) -> None:
        """The zygote is gone, and every worker with it: start again, and give each job that ran one more try."""
        if self._zygote.control is not None:
            self._selector.unregister(self._zygote.control)
        self._zygote.stop(failed=True)
        self._metrics.add("grammar_worker_restarts_total")
        for worker in self._workers.values():
            if not worker.is_closed:
                self._selector.unregister(worker.connection)
                worker.connection.close()
            if worker.job is not None and worker.job.tries == 0:
                worker.job.tries += 1
                self._waiting.appendleft(worker.job)
            elif worker.job is not None:
                worker.job.fail(GrammarServiceUnavailableError("the grammar compile process died; try again"))
        self._workers.clear()
        if self._zygote.num_failed_starts >= _MAX_FAILED_STARTS:
            self._collect_inbox()
            while self._waiting:
                self._waiting.popleft().fail(GrammarServiceUnavailableError("grammar compile processes do not start"))

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
            self._waiting.popleft().fail(error)
        self._zygote.stop(failed=False)
        self._selector.close()
        os.close(self._wake_read)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it has been woken often enough
            os.write(self._wake_write, b"w")

    def _wake_if_cancelled(self, future: Future[CompileResult]) -> None:
        if future.cancelled():
            self._wake()

"""Functions run on real ranks: processes of their own, gloo over 127.0.0.1."""

from __future__ import annotations

import multiprocessing
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

from model_runner.config import RankConfig

_SECONDS_TO_LEAVE = 10.0


class RankFailedError(AssertionError):
    """A rank raised, died, or was not done in time; the message holds what each of them said."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection


class RankProcesses:
    """
    Processes that run a function as the ranks of a group, again and again: importing torch takes seconds.

    The function is found by its module's name in the other processes, so it stands at the top of a module that can be
    imported from ``sys.path`` (the folders that the ``conftest.py`` files put there), not of a test file. It is called
    as ``function(rank_config, *args)`` and makes its own :class:`Ranks`, of which the harness disposes.
    """

    def __init__(self) -> None:
        self._workers: list[_Worker] = []
        self._running = 0

    def run(self, function: Callable[..., Any], *args: Any, size: int = 2, timeout: float = 100.0) -> list[Any]:
        """What the function returns on each rank, in rank order; :class:`RankFailedError` if it does not on one."""
        self.start(function, *args, size=size)
        return self.results(timeout)

    def start(self, function: Callable[..., Any], *args: Any, size: int = 2) -> list[BaseProcess]:
        """Begin, and hand out the processes for a test to end one; :meth:`results` or :meth:`outcomes` follows."""
        if any(not worker.process.is_alive() for worker in self._workers):
            self.close()
        while len(self._workers) < size:
            self._workers.append(_start_worker())
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            for rank, worker in enumerate(self._workers[:size]):
                config = RankConfig(
                    rank=rank,
                    size=size,
                    local_rank=rank,
                    host="127.0.0.1",
                    port=port,
                    listener=listener if rank == 0 else None,
                    timeout=20.0,
                    start_timeout=30.0,
                )
                worker.pipe.send((function, config, args))
            # Until rank 0 has its copy of the listening socket, this process must hold it.
            self._workers[0].pipe.recv()
        self._running = size
        return [worker.process for worker in self._workers[:size]]

    def results(self, timeout: float = 100.0) -> list[Any]:
        """As :meth:`run`."""
        outcomes = self.outcomes(timeout)
        failed = [f"rank {rank}: {outcome}" for rank, (is_done, outcome) in enumerate(outcomes) if not is_done]
        if failed:
            raise RankFailedError("\n".join(failed))
        return [outcome for _, outcome in outcomes]

    def outcomes(self, timeout: float = 100.0) -> list[tuple[bool, Any]]:
        """For each rank ``(True, what the function returned)``, or ``(False, why there is nothing)``."""
        deadline = time.monotonic() + timeout
        outcomes = [self._outcome(worker, deadline) for worker in self._workers[: self._running]]
        if not all(is_done for is_done, _ in outcomes):
            self.close()
        self._running = 0
        return outcomes

    def close(self) -> None:
        """End the processes: those that wait for work by themselves, the others by force."""
        for worker in self._workers:
            worker.pipe.close()
            if self._running:
                worker.process.kill()
        for worker in self._workers:
            worker.process.join(_SECONDS_TO_LEAVE)
            worker.process.kill()
            worker.process.join()
        self._workers.clear()
        self._running = 0

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @staticmethod
    def _outcome(worker: _Worker, deadline: float) -> tuple[bool, Any]:
        if not worker.pipe.poll(max(0.0, deadline - time.monotonic())):
            return False, "not done in time"
        try:
            is_done, outcome = worker.pipe.recv()
        except EOFError:
            worker.process.join()
            return False, f"ended with exit code {worker.process.exitcode}"
        return is_done, outcome


def _start_worker() -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _serve(pipe: Connection) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    while True:
        try:
            function, config, args = pipe.recv()
        except EOFError:  # the tests have ended
            return
        if config.rank == 0:
            pipe.send("listening")
        try:
            outcome = True, function(config, *args)
        except Exception:
            outcome = False, traceback.format_exc()
        finally:
            if distributed.is_initialized():
                distributed.destroy_process_group()
        pipe.send(outcome)

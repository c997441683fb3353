"""First code of each child process. Heavy modules are imported here, so only the process that needs them has them."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from server.http.access_log import configure_logging
from server.launch.processes.status import StatusPipe

if TYPE_CHECKING:
    from constrained.config import GrammarConfig
    from model_runner.config import RankConfig, RunnerConfig
    from scheduler.config import SchedulerConfig
    from server.config import HttpConfig, LogFormat, LogLevel
    from server.models.assets import ModelAssets

_ORPHANED = 70
_PR_SET_PDEATHSIG = 1


def scheduler_entry(
    log_level: LogLevel,
    log_format: LogFormat,
    config: SchedulerConfig,
    runner: RunnerConfig,
    grammar: GrammarConfig | None,
    eos_token_ids: tuple[int, ...],
    tokenizer_json: Path,
    draft_runner: RunnerConfig | None,
    ranks: RankConfig | None,
    status: Connection,
) -> None:
    """A scheduler process: the only one of its group, or one rank of it."""
    die_with_parent()
    configure_logging(log_level, log_format)
    for package in ("scheduler", "model_runner", "sampling", "constrained"):
        logging.getLogger(package).setLevel(log_level.upper())
    from scheduler.process import run_scheduler

    pipe = StatusPipe.take_over(status)
    run_scheduler(config, runner, grammar, eos_token_ids, tokenizer_json, pipe, draft_runner, ranks)


def http_entry(config: HttpConfig, assets: ModelAssets, listener: socket.socket, status: Connection) -> None:
    """An HTTP process."""
    die_with_parent()
    from server.worker import run_http_worker

    run_http_worker(config, assets, listener, StatusPipe.take_over(status))


def die_with_parent() -> None:
    """End this process when the supervisor is gone, however it went.

    A thread watches on every system; on Linux the kernel does too, for the case that this process hangs in native code.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a libc without prctl: the thread remains
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(_ORPHANED)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()

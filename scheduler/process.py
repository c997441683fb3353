"""Entry point of a scheduler process."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import threading
import types
from pathlib import Path
from typing import TYPE_CHECKING

from model_runner.threads import configure_thread_environment
from scheduler.config import SchedulerConfig
from scheduler.messages import SchedulerReady

if TYPE_CHECKING:
    from constrained.config import GrammarConfig
    from model_runner.config import RankConfig, RunnerConfig

logger = logging.getLogger(__name__)


def run_scheduler(
    config: SchedulerConfig,
    runner: RunnerConfig,
    grammar: GrammarConfig | None,
    eos_token_ids: tuple[int, ...],
    tokenizer_json: Path,
    status: multiprocessing.connection.Connection,
    draft_runner: RunnerConfig | None = None,
    ranks: RankConfig | None = None,
) -> None:
    """Load the model, serve requests until SIGTERM, and exit.

    ``status`` gets ``("progress", stage, fraction)`` tuples, then ``("ready", summary)`` and an ``("alive",)`` every
    few seconds, or ``("failed", message)``; after a failure the process exits with 1. SIGTERM finishes the requests
    that are there and refuses new ones, a second SIGTERM leaves at once; SIGINT is the parent's to handle. The process
    never outlives its parent.

    With ``ranks`` this is one of a group of processes that run the same loop. Rank 0 alone binds ``config.endpoint``
    and drains at SIGTERM; the others leave with it. A process that loses another rank exits with 1.
    """
    _die_with_parent()
    # Both are read once, when torch and the tokenizers are imported.
    configure_thread_environment(runner.num_threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    signals = _Signals()
    try:
        # Imported here, behind the thread environment, and so that whoever spawns this module never imports torch.
        from scheduler.build import build

        scheduler = build(
            config,
            runner,
            grammar,
            eos_token_ids,
            tokenizer_json,
            draft_runner=draft_runner,
            ranks=ranks,
            interrupt_fd=signals.fileno(),
            on_progress=lambda stage, fraction: status.send(("progress", stage, fraction)),
            on_heartbeat=lambda: _report_alive(status),
        )
    except Exception as error:
        from constrained.errors import GrammarError
        from model_runner.errors import ModelLoadError

        if not isinstance(error, (ModelLoadError, GrammarError)):  # their message is all that a person needs
            logger.exception("the scheduler could not start")
        status.send(("failed", str(error) or type(error).__name__))
        raise SystemExit(1) from error
    from model_runner.errors import RankError

    signals.on_terminate = scheduler.drain
    status.send(("ready", _summary(scheduler.loop.ready)))
    if ranks is not None and ranks.rank:
        logging.getLogger("scheduler").setLevel(logging.CRITICAL)  # what becomes of requests, rank 0 says
    try:
        scheduler.loop.run_forever()
    except RankError as error:
        logger.critical("rank %d leaves its group: %s", 0 if ranks is None else ranks.rank, error)
        raise SystemExit(1) from None
    except Exception:
        # Nobody knows what state the step left behind: the supervisor starts a fresh process.
        logger.critical("the scheduler's loop failed", exc_info=True)
        raise SystemExit(1) from None
    finally:
        scheduler.close()


class _Signals:
    """SIGTERM drains; the descriptor is readable after a signal, so that a blocked loop wakes up."""

    def __init__(self) -> None:
        self.on_terminate = self._leave
        self._was_told = False
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def fileno(self) -> int:
        return self._receiver.fileno()

    def _handle(self, number: int, frame: types.FrameType | None) -> None:
        if self._was_told:
            self._leave()
        self._was_told = True
        self.on_terminate()

    @staticmethod
    def _leave() -> None:
        raise SystemExit(0)


def _report_alive(status: multiprocessing.connection.Connection) -> None:
    with contextlib.suppress(OSError):  # the parent is gone, and so is this process in a moment
        status.send(("alive",))


def _summary(ready: SchedulerReady) -> str:
    return (
        f"{ready.num_parameters / 1e6:.0f}M parameters in {ready.dtype} on {ready.device} "
        f"({ready.weight_bytes / 2**20:.0f} MiB), {ready.attention_backend} attention, "
        f"context {ready.context_length}, KV cache {ready.kv_cache_tokens} tokens"
    )


def _die_with_parent() -> None:
    """Even a parent that is killed takes this process with it."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()

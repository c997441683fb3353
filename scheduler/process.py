"""Entry point of a scheduler process."""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import multiprocessing.connection
import os
import secrets
import signal
import socket
import threading
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.config import SchedulerConfig
from scheduler.messages import SchedulerReady

if TYPE_CHECKING:
    from constrained.config import GrammarConfig
    from constrained.manager import GrammarManager
    from constrained.masks import GrammarMasks
    from constrained.vocabulary import Vocabulary
    from model_runner.config import RunnerConfig
    from model_runner.runner import ModelRunner
    from scheduler.drafters.source import DraftSource
    from scheduler.loop import Scheduler
    from scheduler.request import RequestGroup

logger = logging.getLogger(__name__)


def run_scheduler(
    config: SchedulerConfig,
    runner: RunnerConfig,
    grammar: GrammarConfig | None,
    eos_token_ids: tuple[int, ...],
    tokenizer_json: Path,
    status: multiprocessing.connection.Connection,
    draft_runner: RunnerConfig | None = None,
) -> None:
    """Load the model, serve requests until SIGTERM, and exit.

    ``status`` gets ``("progress", stage, fraction)`` tuples, then ``("ready", summary)`` and an ``("alive",)`` every
    few seconds, or ``("failed", message)``; after a failure the process exits with 1. SIGTERM finishes the requests
    that are there and refuses new ones, a second SIGTERM leaves at once; SIGINT is the parent's to handle. The process
    never outlives its parent.
    """
    _die_with_parent()
    _set_thread_environment(runner.num_threads)
    signals = _Signals()
    try:
        scheduler, close = _build(config, runner, grammar, eos_token_ids, tokenizer_json, status, signals, draft_runner)
    except Exception as error:
        from constrained.errors import GrammarError
        from model_runner.errors import ModelLoadError

        if not isinstance(error, (ModelLoadError, GrammarError)):  # their message is all that a person needs
            logger.exception("the scheduler could not start")
        status.send(("failed", str(error) or type(error).__name__))
        raise SystemExit(1) from error
    signals.on_terminate = scheduler.drain
    status.send(("ready", _summary(scheduler.ready)))
    try:
        scheduler.run_forever()
    except Exception:
        # Nobody knows what state the step left behind: the supervisor starts a fresh process.
        logger.critical("the scheduler's loop failed", exc_info=True)
        raise SystemExit(1) from None
    finally:
        close()


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


def _build(
    config: SchedulerConfig,
    runner_config: RunnerConfig,
    grammar: GrammarConfig | None,
    eos_token_ids: tuple[int, ...],
    tokenizer_json: Path,
    status: multiprocessing.connection.Connection,
    signals: _Signals,
    draft_runner: RunnerConfig | None,
) -> tuple[Scheduler, Callable[[], None]]:
    """Load everything, and bind the socket last: who can connect can be served."""
    # Imported here, behind the thread environment, and so that whoever spawns this module never imports torch.
    from tokenizers import Tokenizer

    from constrained.auto import load_plugins
    from constrained.vocabulary import Vocabulary
    from model_runner.runner import ModelRunner
    from sampling.sampler import SamplerState
    from scheduler.connection import RouterConnection
    from scheduler.drafters.build import build_drafter
    from scheduler.loop import Scheduler
    from scheduler.step_executor import StepExecutor

    if config.max_batch_tokens > runner_config.max_batch_tokens:
        raise ValueError(
            f"a step of {config.max_batch_tokens} tokens is more than the runner's {runner_config.max_batch_tokens}"
        )
    if grammar is not None:
        load_plugins(grammar)  # before the weights: a name that nothing registers is known at once
    vocabulary = Vocabulary.from_tokenizer_json(tokenizer_json)
    model = ModelRunner(runner_config, lambda stage, fraction: status.send(("progress", stage, fraction)))
    draft_model = None if draft_runner is None else _load_draft_model(config, draft_runner, status)
    sampler = SamplerState(model.vocab_size, eos_token_ids, model.device)
    manager, masks = None, None
    if grammar is not None and grammar.backend != "none":
        manager, masks = _make_grammars(grammar, config, vocabulary, model, eos_token_ids)
    executor = StepExecutor(model, sampler, masks, overlap=config.overlap)
    if config.effective_max_running_requests < config.max_running_requests:
        logger.warning(
            "at most %d requests run at once, not %d: a step has room for %d tokens",
            config.effective_max_running_requests,
            config.max_running_requests,
            config.max_batch_tokens,
        )
    # What is loaded stays: the collector need not look at it again on the loop.
    gc.collect()
    gc.freeze()
    connection = RouterConnection(
        config.endpoint, interrupt_fd=signals.fileno(), wake_fds=() if manager is None else (manager.fileno(),)
    )
    scheduler = Scheduler(
        config,
        executor,
        connection,
        ready=_describe(config, model),
        page_size=model.page_size,
        eos_token_ids=eos_token_ids,
        token_bytes=vocabulary.visible_bytes,
        grammar_manager=manager,
        drafter=build_drafter(
            config, Tokenizer.from_file(str(tokenizer_json)), vocabulary.visible_bytes, model.vocab_size, draft_model
        ),
        on_heartbeat=lambda: _report_alive(status),
    )

    def close() -> None:
        connection.close()
        if manager is not None:
            manager.shutdown()

    return scheduler, close


def _load_draft_model(
    config: SchedulerConfig, runner: RunnerConfig, status: multiprocessing.connection.Connection
) -> DraftSource:
    from model_runner.runner import ModelRunner
    from scheduler.drafters.draft_model import DraftModelDrafter
    from scheduler.kv_pool import KvPool

    model = ModelRunner(runner, lambda stage, done: status.send(("progress", f"draft model: {stage}", done)))
    return DraftModelDrafter(
        model,
        KvPool(model.num_pages, model.page_size),
        context_length=model.context_length,
        max_tokens=config.max_draft_tokens,
        max_batch_tokens=config.max_batch_tokens,
    )


def _report_alive(status: multiprocessing.connection.Connection) -> None:
    with contextlib.suppress(OSError):  # the parent is gone, and so is this process in a moment
        status.send(("alive",))


def _make_grammars(
    config: GrammarConfig, scheduler: SchedulerConfig, vocabulary: Vocabulary, model: ModelRunner, eos: tuple[int, ...]
) -> tuple[GrammarManager[RequestGroup], GrammarMasks]:
    from constrained.environment import GrammarEnvironment
    from constrained.manager import GrammarManager
    from constrained.masks import GrammarMasks

    config = replace(config, max_draft_tokens=scheduler.max_draft_tokens)
    environment = GrammarEnvironment(vocabulary, model.vocab_size, eos, config)
    manager: GrammarManager[RequestGroup] = GrammarManager(environment)
    masks = GrammarMasks(environment, scheduler.effective_max_running_requests, model.device, manager.metrics)
    return manager, masks


def _describe(config: SchedulerConfig, model: ModelRunner) -> SchedulerReady:
    return SchedulerReady(
        boot_id=secrets.token_hex(8),
        context_length=model.context_length,
        vocab_size=model.vocab_size,
        kv_cache_tokens=model.num_pages * model.page_size,
        max_running_requests=config.effective_max_running_requests,
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        attention_backend=model.attention_backend,
        num_parameters=model.num_parameters,
        weight_bytes=model.weight_bytes,
    )


def _summary(ready: SchedulerReady) -> str:
    return (
        f"{ready.num_parameters / 1e6:.0f}M parameters in {ready.dtype} on {ready.device} "
        f"({ready.weight_bytes / 2**20:.0f} MiB), {ready.attention_backend} attention, "
        f"context {ready.context_length}, KV cache {ready.kv_cache_tokens} tokens"
    )


def _set_thread_environment(num_threads: int | None) -> None:
    """The math libraries read these once, when torch is imported; what the user has set is kept."""
    threads = num_threads if num_threads is not None else len(os.sched_getaffinity(0))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _die_with_parent() -> None:
    """Even a parent that is killed takes this process with it."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()

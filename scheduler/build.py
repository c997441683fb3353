"""From configurations to a scheduler that can run: alone, or as one rank of a group."""

from __future__ import annotations

import gc
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer

from constrained.config import GrammarConfig
from constrained.engines.auto import load_plugins
from constrained.environment import GrammarEnvironment
from constrained.masks.slots import GrammarMasks
from constrained.queue.manager import GrammarManager
from constrained.vocabulary import Vocabulary
from model_runner.config import RankConfig, RunnerConfig
from model_runner.ranks import Ranks
from model_runner.runner import ModelRunner
from sampling.sampler import SamplerState
from scheduler.config import SchedulerConfig
from scheduler.connection import RouterConnection
from scheduler.drafters.build import build_drafter
from scheduler.drafters.draft_model import DraftModelDrafter
from scheduler.drafters.source import DraftSource
from scheduler.execution.step_executor import StepExecutor
from scheduler.interfaces import Executor
from scheduler.loop import Scheduler
from scheduler.memory.kv_pool import KvPool
from scheduler.messages import SchedulerReady
from scheduler.ranks.connection import FollowingConnection, LeadingConnection
from scheduler.ranks.drafts import SharedDrafts
from scheduler.ranks.draws import FollowingExecutor
from scheduler.ranks.plan_check import PlanCheck
from scheduler.ranks.setup import meet, shared_seeds
from scheduler.requests.intake import random_seed
from scheduler.requests.request import RequestGroup

logger = logging.getLogger(__name__)

_WARM_SECONDS = 60
"""How long the start waits for the compile processes, so that no first request does."""

Progress = Callable[[str, float], None]
"""Told the name of a stage and the fraction of it that is done."""


@dataclass(frozen=True, slots=True)
class BuiltScheduler:
    loop: Scheduler
    drain: Callable[[], None]
    """Refuse new requests and finish those that are there; for a signal handler."""
    close: Callable[[], None]


def build(
    config: SchedulerConfig,
    runner_config: RunnerConfig,
    grammar: GrammarConfig | None,
    eos_token_ids: tuple[int, ...],
    tokenizer_json: Path,
    *,
    draft_runner: RunnerConfig | None,
    ranks: RankConfig | None,
    interrupt_fd: int,
    on_progress: Progress,
    on_heartbeat: Callable[[], None],
) -> BuiltScheduler:
    """Load everything, and bind the socket last: who can connect can be served."""
    if config.max_batch_tokens > runner_config.max_batch_tokens:
        raise ValueError(
            f"a step of {config.max_batch_tokens} tokens is more than the runner's {runner_config.max_batch_tokens}"
        )
    if grammar is not None:
        load_plugins(grammar)  # before the weights: a name that nothing registers is known at once
    vocabulary = Vocabulary.from_tokenizer_json(tokenizer_json)
    group = None if ranks is None else meet(ranks, runner_config, config, grammar, eos_token_ids)
    model = ModelRunner(runner_config, on_progress, group)
    drafts = None if draft_runner is None else _load_drafts(config, draft_runner, model, group, on_progress)
    drafter = build_drafter(
        config, Tokenizer.from_file(str(tokenizer_json)), vocabulary.visible_bytes, model.vocab_size, drafts
    )
    environment, manager = None, None
    if grammar is not None and grammar.backend != "none":
        grammar = replace(grammar, max_draft_tokens=config.max_draft_tokens)
        environment = GrammarEnvironment(vocabulary, model.vocab_size, eos_token_ids, grammar)
        manager = _make_manager(environment, group)
    executor: Executor
    if group is None or group.rank == 0:
        sampler = SamplerState(model.vocab_size, eos_token_ids, model.device)
        masks = None
        if environment is not None and manager is not None:
            masks = GrammarMasks(environment, config.effective_max_running_requests, model.device, manager.metrics)
        executor = StepExecutor(model, sampler, masks, overlap=config.overlap, ranks=group)
    else:
        executor = FollowingExecutor(model, group, overlap=config.overlap)
    if config.effective_max_running_requests < config.max_running_requests:
        logger.warning(
            "at most %d requests run at once, not %d: a step has room for %d tokens",
            config.effective_max_running_requests,
            config.max_running_requests,
            config.max_batch_tokens,
        )
    if manager is not None and not manager.wait_until_warm(_WARM_SECONDS):
        logger.warning("the grammar compile processes are not ready after %d s; requests wait for them", _WARM_SECONDS)
    # What is loaded stays: the collector need not look at it again on the loop.
    gc.collect()
    gc.freeze()
    gc.collect()  # or it would wait for a quarter as many old objects as there were, before it looks at those again
    if group is not None:
        group.wait_for_all("starting")
    connection = _connect(config.endpoint, interrupt_fd, manager, group)
    scheduler = Scheduler(
        config,
        executor,
        connection,
        ready=describe(config, model),
        page_size=model.page_size,
        row_tile=model.row_tile,
        eos_token_ids=eos_token_ids,
        token_bytes=vocabulary.visible_bytes,
        grammar_manager=manager,
        drafter=drafter,
        draw_seed=random_seed if group is None else shared_seeds(group),
        check_plan=PlanCheck(group) if group is not None and ranks is not None and ranks.checks_plans else None,
        on_heartbeat=on_heartbeat,
    )

    def close() -> None:
        connection.close()
        if manager is not None:
            manager.shutdown()
        if group is not None:
            group.close()

    if isinstance(connection, RouterConnection):
        return BuiltScheduler(scheduler, scheduler.drain, close)
    connection.fingerprint = scheduler.fingerprint
    return BuiltScheduler(scheduler, connection.drain, close)


def _connect(
    endpoint: str, interrupt_fd: int, manager: GrammarManager[RequestGroup] | None, group: Ranks | None
) -> RouterConnection | LeadingConnection | FollowingConnection:
    if group is not None and group.rank:
        return FollowingConnection(group)
    wake_fds = () if manager is None else (manager.fileno(),)
    router = RouterConnection(endpoint, interrupt_fd=interrupt_fd, wake_fds=wake_fds)
    return router if group is None else LeadingConnection(router, group)


def _load_drafts(
    config: SchedulerConfig, draft_runner: RunnerConfig, model: ModelRunner, group: Ranks | None, on_progress: Progress
) -> DraftSource | None:
    """The draft model: it is small, so one device holds all of it. Of many ranks the first has it."""
    source: DraftSource | None = None
    if group is None or group.rank == 0:
        runner = ModelRunner(
            replace(draft_runner, device=str(model.device)),
            lambda stage, fraction: on_progress(f"draft model: {stage}", fraction),
        )
        source = DraftModelDrafter(
            runner,
            KvPool(runner.num_pages, runner.page_size),
            context_length=runner.context_length,
            max_tokens=config.max_draft_tokens,
            max_batch_tokens=config.max_batch_tokens,
        )
    return source if group is None else SharedDrafts(DraftModelDrafter.name, source, group, config.max_draft_tokens)


def _make_manager(environment: GrammarEnvironment, group: Ranks | None) -> GrammarManager[RequestGroup]:
    if group is None:
        return GrammarManager(environment)
    return GrammarManager(environment, all_gather=group.all_gather, is_timekeeper=group.rank == 0)


def describe(config: SchedulerConfig, model: ModelRunner) -> SchedulerReady:
    """What the HTTP process is told about the model and the limits it is served with."""
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

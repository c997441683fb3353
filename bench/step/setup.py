"""The processes' objects in one thread: runner, sampler, executor, scheduler, and the spans around their parts."""

from __future__ import annotations

import contextlib
import inspect
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from bench.step.profile import StepProfileError, StepShape
from bench.step.spans import Spans
from constrained.config import GrammarConfig
from constrained.environment import GrammarEnvironment
from constrained.masks.slots import GrammarMasks
from constrained.queue.manager import GrammarManager
from constrained.vocabulary import Vocabulary
from model_runner import runner as runner_module
from model_runner.attention.base import AttentionBackend
from model_runner.config import RunnerConfig
from model_runner.layers import linear
from model_runner.runner import ModelRunner
from sampling.sampler import SamplerState
from scheduler.build import describe
from scheduler.config import SchedulerConfig
from scheduler.connection import RouterConnection
from scheduler.execution import step_executor
from scheduler.execution.step_executor import StepExecutor
from scheduler.loop import Scheduler
from scheduler.requests.request import RequestGroup
from server.models.assets import ModelAssets


@dataclass(frozen=True)
class Setup:
    """What a profile runs on."""

    scheduler: Scheduler
    runner: ModelRunner
    spans: Spans
    endpoint: str

    @property
    def num_threads(self) -> int:
        return torch.get_num_threads()


@contextlib.contextmanager
def set_up(runner_config: RunnerConfig, shape: StepShape, assets: ModelAssets) -> Iterator[Setup]:
    """Load the model and join a scheduler to it; everything is taken down at the end."""
    runner_config = replace(
        runner_config,
        kv_cache_tokens=shape.kv_cache_tokens(runner_config.page_size),
        max_batch_tokens=shape.prefill_tokens,
    )
    runner = ModelRunner(runner_config)
    if runner.context_length < shape.longest:
        raise StepProfileError(f"the model's context of {runner.context_length} tokens is less than {shape.longest}")
    vocabulary = Vocabulary.from_tokenizer_json(assets.tokenizer_json)
    sampler = SamplerState(runner.vocab_size, assets.eos_token_ids, runner.device)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="scansion-bench-"))
        config = SchedulerConfig(
            endpoint=f"ipc://{folder}/scheduler",
            max_running_requests=max(shape.row_counts),
            max_batch_tokens=shape.prefill_tokens,
        )
        manager, masks = None, None
        if shape.structured:
            manager, masks = _grammars(vocabulary, runner, config, assets.eos_token_ids)
            stack.callback(manager.shutdown)
        executor = StepExecutor(runner, sampler, masks, overlap=config.overlap)
        connection = RouterConnection(config.endpoint)
        stack.callback(connection.close)
        scheduler = Scheduler(
            config,
            executor,
            connection,
            ready=describe(config, runner),
            page_size=runner.page_size,
            eos_token_ids=assets.eos_token_ids,
            token_bytes=vocabulary.visible_bytes,
            grammar_manager=manager,
        )
        spans = Spans(torch.cuda.synchronize if runner.device.type == "cuda" else lambda: None)
        stack.callback(spans.unwrap)
        spans.wrap(scheduler, "receive", "receive")
        spans.wrap(scheduler, "step", "apply")
        spans.wrap(scheduler.planner, "plan", "plan")
        spans.wrap(executor, "launch", "launch")
        spans.wrap(executor, "collect", "collect")
        spans.wrap(sampler, "sample", "sample")
        spans.wrap(connection, "send", "send")
        spans.wrap(step_executor, "fill_step_mask", "mask")
        _wrap_forward(spans, runner)
        yield Setup(scheduler, runner, spans, config.endpoint)


def _grammars(
    vocabulary: Vocabulary, runner: ModelRunner, config: SchedulerConfig, eos_token_ids: tuple[int, ...]
) -> tuple[GrammarManager[RequestGroup], GrammarMasks]:
    grammar_config = GrammarConfig(max_draft_tokens=config.max_draft_tokens)
    environment = GrammarEnvironment(vocabulary, runner.vocab_size, eos_token_ids, grammar_config)
    manager: GrammarManager[RequestGroup] = GrammarManager(environment)
    masks = GrammarMasks(environment, config.effective_max_running_requests, runner.device, manager.metrics)
    return manager, masks


def _wrap_forward(spans: Spans, runner: ModelRunner) -> None:
    spans.wrap(runner, "forward", "forward")
    spans.wrap(runner_module, "build_batch", "batch")
    for backend in _subclasses(AttentionBackend):
        for method in ("plan", "attend"):
            if method in vars(backend):
                spans.wrap(backend, method, "attention")
    for _, kind in inspect.getmembers(linear, inspect.isclass):
        if kind.__module__ == linear.__name__ and "__call__" in vars(kind):
            spans.wrap(kind, "__call__", "matmul")


def _subclasses(kind: type[Any]) -> list[type[Any]]:
    below = kind.__subclasses__()
    return [*below, *(further for one in below for further in _subclasses(one))]

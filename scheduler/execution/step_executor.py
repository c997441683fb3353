"""Runs planned steps on the model: forward pass, grammar masks, sampling."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from constrained.masks.slots import GrammarMasks
from sampling.layout import SampleRow
from sampling.logprobs import LogprobTensors, SampledLogprob, compute_logprobs
from sampling.sampler import SampleOutput, SamplerState
from scheduler.execution.grammar_masks import fill_step_mask
from scheduler.execution.step_layout import Draws, StepLayout, lay_out
from scheduler.interfaces import Runner
from scheduler.messages import TokenLogprob, TopLogprob
from scheduler.planning.plan import PlanRow, RowResult, StepPlan, StepResult
from scheduler.ranks.draws import send_draws
from scheduler.requests.request import Request

if TYPE_CHECKING:
    from model_runner.ranks import Ranks


@dataclass(slots=True)
class _LaunchedStep:
    plan: StepPlan
    layout: StepLayout
    output: SampleOutput | None = None
    draws: Draws | None = None
    host: Draws | None = None
    is_on_host: torch.cuda.Event | None = None
    scores: dict[int, LogprobTensors] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


class StepExecutor:
    """Composes the model runner and the sampler.

    On CUDA and with ``overlap``, a step may be launched before the results of the one before it are collected: its
    pending tokens are taken from the predecessor's draws on the device. With ``ranks`` this is the executor of rank 0.
    """

    def __init__(
        self,
        runner: Runner,
        sampler: SamplerState,
        masks: GrammarMasks | None = None,
        *,
        overlap: bool,
        ranks: Ranks | None = None,
    ) -> None:
        self.max_in_flight = 1 if overlap and runner.device.type == "cuda" else 0
        self._runner = runner
        self._sampler = sampler
        self._masks = masks
        self._ranks = ranks
        self._launched: deque[_LaunchedStep] = deque()
        self._newest: _LaunchedStep | None = None

    @torch.inference_mode()
    def add(self, request: Request) -> None:
        self._sampler.add(
            request.key,
            request.sampling,
            request.token_ids[: request.prompt_length],
            seed=request.group.seed,
            choice_index=request.choice_index,
        )

    @torch.inference_mode()
    def remove(self, request: Request) -> None:
        self._sampler.remove(request.key)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        previous = self._newest
        layout = lay_out(plan, None if previous is None else previous.layout)
        step = _LaunchedStep(plan, layout)
        pending = None if previous is None or previous.draws is None else previous.draws.token_ids
        logits = self._runner.forward(layout.forward_rows, pending)
        for index, (start, count) in layout.score_spans.items():
            row = plan.rows[index]
            step.scores[index] = _score(row, logits[start : start + count])
        if layout.sampled_rows:
            self._sample(step, logits)
        self._launched.append(step)
        self._newest = step

    @torch.inference_mode()
    def collect(self) -> StepResult:
        step = self._launched.popleft()
        results = [RowResult(error=step.errors.get(index)) for index in range(len(step.plan.rows))]
        for index, scores in step.scores.items():
            num_top = step.plan.rows[index].request.sampling.prompt_logprobs or 0
            results[index].prompt_logprobs = _to_messages(scores.to_lists([num_top] * len(scores.token_ids)))
        if step.output is not None and step.host is not None:
            if step.is_on_host is not None:
                step.is_on_host.synchronize()
            step.host.read(step.layout, results, reason="The model gave no finite logits for this request.")
            _read_logprobs(step, step.output, results)
        return StepResult(results)

    def _sample(self, step: _LaunchedStep, logits: torch.Tensor) -> None:
        layout = step.layout
        if len(layout.sample_indices) != len(logits):
            logits = logits[torch.tensor(layout.sample_indices, device=logits.device)]
        rows = [step.plan.rows[index] for index in layout.sampled_rows]
        mask = None
        if self._masks is not None and any(row.request.grammar is not None for row in rows):
            errors = fill_step_mask(self._masks, rows)
            step.errors = {layout.sampled_rows[index]: message for index, message in errors.items()}
            mask = self._masks.rows(len(logits))
        step.output = self._sampler.sample(
            logits, [SampleRow(row.request.key, row.output_position, row.draft_token_ids) for row in rows], mask
        )
        step.draws = Draws(step.output.token_ids, step.output.num_accepted, step.output.failed)
        if self._ranks is not None:
            for index in step.errors:
                step.draws.failed[layout.sampled_rows.index(index)] = True
            step.draws = send_draws(self._ranks, step.draws)
        step.host, step.is_on_host = step.draws.to_host()


def _read_logprobs(step: _LaunchedStep, output: SampleOutput, results: Sequence[RowResult]) -> None:
    for position, index in enumerate(step.layout.sampled_rows):
        result = results[index]
        if result.error is None and step.plan.rows[index].request.sampling.logprobs is not None:
            result.logprobs = _to_messages(output.logprobs_of(position, len(result.token_ids)) or [])


def _score(row: PlanRow, logits: torch.Tensor) -> LogprobTensors:
    """Log-probabilities of the prompt tokens behind positions ``score_from`` and on. logits [T, V]"""
    first = (row.score_from or 0) + 1
    targets = torch.tensor(row.request.token_ids[first : first + len(logits)], device=logits.device)
    return compute_logprobs(logits, targets, row.request.sampling.prompt_logprobs or 0)


def _to_messages(logprobs: Sequence[SampledLogprob]) -> list[TokenLogprob]:
    return [
        TokenLogprob(
            token_id=item.token_id,
            logprob=item.logprob,
            top=[TopLogprob(token_id=top.token_id, logprob=top.logprob) for top in item.top],
        )
        for item in logprobs
    ]

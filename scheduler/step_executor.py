"""Runs planned steps on the model: forward pass, grammar masks, sampling."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from constrained.masks import GrammarMasks
from model_runner.forward_row import ForwardRow
from sampling.logprobs import LogprobTensors, compute_logprobs
from sampling.logprobs import TokenLogprob as SampledLogprob
from sampling.sampler import SampleOutput, SamplerState
from sampling.step import SampleRow
from scheduler.grammar_masks import fill_step_mask
from scheduler.interfaces import Runner
from scheduler.messages import TokenLogprob, TopLogprob
from scheduler.plan import PlanRow, RowResult, StepPlan, StepResult
from scheduler.request import Request


@dataclass(slots=True)
class _LogitsLayout:
    """Where each row's logits are in the forward pass's ``[S, V]``, and its draws among the sampled ones."""

    forward_rows: list[ForwardRow] = field(default_factory=list)
    score_spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By row: first logits row and count of those that score prompt tokens."""
    sampled_rows: list[int] = field(default_factory=list)
    sample_indices: list[int] = field(default_factory=list)
    """Logits rows that are drawn from, in order."""
    sample_starts: dict[int, int] = field(default_factory=dict)
    """By row: index of its first draw."""


@dataclass(slots=True)
class _LaunchedStep:
    plan: StepPlan
    layout: _LogitsLayout
    output: SampleOutput | None = None
    host: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    """Token ids, accepted drafts and failures, on their way to the CPU."""
    is_on_host: torch.cuda.Event | None = None
    scores: dict[int, LogprobTensors] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


class StepExecutor:
    """Composes the model runner and the sampler.

    On CUDA and with ``overlap``, a step may be launched before the results of the one before it are collected: its
    pending tokens are taken from the predecessor's draws on the device.
    """

    def __init__(
        self, runner: Runner, sampler: SamplerState, masks: GrammarMasks | None = None, *, overlap: bool
    ) -> None:
        self.max_in_flight = 1 if overlap and runner.device.type == "cuda" else 0
        self._runner = runner
        self._sampler = sampler
        self._masks = masks
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
        layout = self._lay_out(plan)
        step = _LaunchedStep(plan, layout)
        previous = self._newest.output if self._newest is not None else None
        logits = self._runner.forward(layout.forward_rows, None if previous is None else previous.token_ids)
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
            self._read_draws(step, step.output, [tensor.tolist() for tensor in step.host], results)
        return StepResult(results)

    def _lay_out(self, plan: StepPlan) -> _LogitsLayout:
        layout = _LogitsLayout()
        offset = 0
        for index, row in enumerate(plan.rows):
            num_drawn = 1 + len(row.draft_token_ids) if row.samples else 0
            num_logits = num_drawn if row.score_from is None else row.end - row.score_from
            layout.forward_rows.append(
                ForwardRow(row.token_ids, row.start, row.block_table, num_logits, self._pending_index(row))
            )
            if row.score_from is not None:
                layout.score_spans[index] = offset, min(row.end, row.request.prompt_length - 1) - row.score_from
            if row.samples:
                layout.sampled_rows.append(index)
                layout.sample_starts[index] = len(layout.sample_indices)
                layout.sample_indices.extend(range(offset + num_logits - num_drawn, offset + num_logits))
            offset += num_logits
        return layout

    def _pending_index(self, row: PlanRow) -> int | None:
        if row.pending_row is None:
            return None
        if self._newest is None:
            raise RuntimeError("a row waits for a token of a step that was never launched")
        return self._newest.layout.sample_starts[row.pending_row]

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
        drawn = (step.output.token_ids, step.output.num_accepted, step.output.failed)
        if logits.device.type == "cpu":
            step.host = drawn
        else:
            # Copied now: a later copy would wait for the step launched after this one.
            step.host = (_to_host(drawn[0]), _to_host(drawn[1]), _to_host(drawn[2]))
            step.is_on_host = torch.cuda.Event()  # type: ignore[no-untyped-call]
            step.is_on_host.record()

    @staticmethod
    def _read_draws(
        step: _LaunchedStep, output: SampleOutput, host: Sequence[list[int]], results: list[RowResult]
    ) -> None:
        token_ids, num_accepted, failed = host
        for position, index in enumerate(step.layout.sampled_rows):
            result = results[index]
            if failed[position] and result.error is None:
                result.error = "The model gave no finite logits for this request."
            if result.error is not None:
                continue
            start = step.layout.sample_starts[index]
            count = num_accepted[position] + 1
            result.token_ids = token_ids[start : start + count]
            if step.plan.rows[index].request.sampling.logprobs is not None:
                result.logprobs = _to_messages(output.logprobs_of(position, count) or [])


def _score(row: PlanRow, logits: torch.Tensor) -> LogprobTensors:
    """Log-probabilities of the prompt tokens behind positions ``score_from`` and on. logits [T, V]"""
    first = (row.score_from or 0) + 1
    targets = torch.tensor(row.request.token_ids[first : first + len(logits)], device=logits.device)
    return compute_logprobs(logits, targets, row.request.sampling.prompt_logprobs or 0)


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    return host


def _to_messages(logprobs: Sequence[SampledLogprob]) -> list[TokenLogprob]:
    return [
        TokenLogprob(
            token_id=item.token_id,
            logprob=item.logprob,
            top=[TopLogprob(token_id=top.token_id, logprob=top.logprob) for top in item.top],
        )
        for item in logprobs
    ]

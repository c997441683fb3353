"""Draws cross the ranks: rank 0 samples, and one broadcast on the device tells the others."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from scheduler.execution.step_layout import Draws, StepLayout, lay_out
from scheduler.interfaces import Runner
from scheduler.messages import TokenLogprob
from scheduler.planning.plan import RowResult, StepPlan, StepResult
from scheduler.requests.request import Request

if TYPE_CHECKING:
    from model_runner.ranks import Ranks

_UNKNOWN = TokenLogprob(token_id=0, logprob=0.0, top=[])
"""Stands for a prompt token's log-probability: only how many are known matters where nobody is told."""


def send_draws(ranks: Ranks, draws: Draws) -> Draws:
    """Tell the other ranks what rank 0 drew; the next step of every rank takes its pending ids from what it returns."""
    packed = torch.cat([draws.token_ids, draws.num_accepted, draws.failed.to(torch.int64)])
    return _unpack(ranks.broadcast_(packed), len(draws.failed))


def receive_draws(ranks: Ranks, layout: StepLayout, device: torch.device) -> Draws:
    """What rank 0 sent for the same step."""
    num_rows = len(layout.sampled_rows)
    packed = torch.empty(len(layout.sample_indices) + 2 * num_rows, dtype=torch.int64, device=device)
    return _unpack(ranks.broadcast_(packed), num_rows)


@dataclass(slots=True)
class _LaunchedStep:
    plan: StepPlan
    layout: StepLayout
    draws: Draws | None = None
    host: Draws | None = None
    is_on_host: torch.cuda.Event | None = None


class FollowingExecutor:
    """The executor of every rank but the first: its part of the forward pass, and the draws of rank 0."""

    def __init__(self, runner: Runner, ranks: Ranks, *, overlap: bool) -> None:
        self.max_in_flight = 1 if overlap and runner.device.type == "cuda" else 0
        self._runner = runner
        self._ranks = ranks
        self._launched: deque[_LaunchedStep] = deque()
        self._newest: _LaunchedStep | None = None

    def add(self, request: Request) -> None:
        """Nothing is sampled here."""

    def remove(self, request: Request) -> None:
        """Nothing is sampled here."""

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        previous = self._newest
        step = _LaunchedStep(plan, lay_out(plan, None if previous is None else previous.layout))
        pending = None if previous is None or previous.draws is None else previous.draws.token_ids
        self._runner.forward(step.layout.forward_rows, pending)
        if step.layout.sampled_rows:
            step.draws = receive_draws(self._ranks, step.layout, self._runner.device)
            step.host, step.is_on_host = step.draws.to_host()
        self._launched.append(step)
        self._newest = step

    def collect(self) -> StepResult:
        step = self._launched.popleft()
        results = [RowResult() for _ in step.plan.rows]
        for index, (_, count) in step.layout.score_spans.items():
            results[index].prompt_logprobs = [_UNKNOWN] * count
        if step.host is not None:
            if step.is_on_host is not None:
                step.is_on_host.synchronize()
            step.host.read(step.layout, results, reason="rank 0 ended it")
        return StepResult(results)


def _unpack(packed: torch.Tensor, num_rows: int) -> Draws:
    """packed [S + 2 R]"""
    num_draws = len(packed) - 2 * num_rows
    return Draws(packed[:num_draws], packed[num_draws : num_draws + num_rows], packed[num_draws + num_rows :])

"""Where a step's rows have their logits, and its draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from model_runner.forward_row import ForwardRow
from scheduler.planning.plan import PlanRow, RowResult, StepPlan


@dataclass(slots=True)
class StepLayout:
    """Where each row's logits are in the forward pass's ``[S, V]``, and its draws among the sampled ones."""

    forward_rows: list[ForwardRow] = field(default_factory=list)
    score_spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By row: first logits row and count of those that score prompt tokens."""
    sampled_rows: list[int] = field(default_factory=list)
    sample_indices: list[int] = field(default_factory=list)
    """Logits rows that are drawn from, in order."""
    sample_starts: dict[int, int] = field(default_factory=dict)
    """By row: index of its first draw."""


def lay_out(plan: StepPlan, previous: StepLayout | None) -> StepLayout:
    """``previous`` is the layout of the step launched before, whose draws a row may wait for."""
    layout = StepLayout()
    offset = 0
    for index, row in enumerate(plan.rows):
        num_drawn = 1 + len(row.draft_token_ids) if row.samples else 0
        num_logits = num_drawn if row.score_from is None else row.end - row.score_from
        layout.forward_rows.append(
            ForwardRow(row.token_ids, row.start, row.block_table, num_logits, _pending_index(row, previous))
        )
        if row.score_from is not None:
            layout.score_spans[index] = offset, min(row.end, row.request.prompt_length - 1) - row.score_from
        if row.samples:
            layout.sampled_rows.append(index)
            layout.sample_starts[index] = len(layout.sample_indices)
            layout.sample_indices.extend(range(offset + num_logits - num_drawn, offset + num_logits))
        offset += num_logits
    return layout


@dataclass(slots=True)
class Draws:
    """What a step drew, for its sampled rows in order; on the device, or on its way to the CPU."""

    token_ids: torch.Tensor
    """``[S]`` int64."""
    num_accepted: torch.Tensor
    """``[R]`` int64: drafts that agree with what was drawn."""
    failed: torch.Tensor
    """``[R]``: rows of which nothing may be kept."""

    def to_host(self) -> tuple[Draws, torch.cuda.Event | None]:
        """A copy for the CPU, and what tells that it is there. Begun now: a later one would wait for the next step."""
        if self.token_ids.device.type == "cpu":
            return self, None
        host = Draws(_to_host(self.token_ids), _to_host(self.num_accepted), _to_host(self.failed))
        is_there = torch.cuda.Event()  # type: ignore[no-untyped-call]
        is_there.record()
        return host, is_there

    def read(self, layout: StepLayout, results: Sequence[RowResult], *, reason: str) -> None:
        """Put each row's tokens into its result; ``reason`` is the error of rows that failed without their own."""
        token_ids, num_accepted, failed = self.token_ids.tolist(), self.num_accepted.tolist(), self.failed.tolist()
        for position, index in enumerate(layout.sampled_rows):
            result = results[index]
            if failed[position] and result.error is None:
                result.error = reason
            if result.error is None:
                start = layout.sample_starts[index]
                result.token_ids = token_ids[start : start + num_accepted[position] + 1]


def _pending_index(row: PlanRow, previous: StepLayout | None) -> int | None:
    if row.pending_row is None:
        return None
    if previous is None:
        raise RuntimeError("a row waits for a token of a step that was never launched")
    return previous.sample_starts[row.pending_row]


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    return host

"""Whether every rank is about to run the same step: for debugging, before the model's collectives would hang on it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec
import torch

from scheduler.planning.plan import StepPlan
from scheduler.ranks.connection import RankDivergedError

if TYPE_CHECKING:
    from model_runner.ranks import Ranks

_DIGEST_BYTES = 16


class PlanCheck:
    """Called with each turn's plan, on every rank; one small all-gather each."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def __call__(self, plan: StepPlan | None) -> None:
        """Raises :class:`RankDivergedError`, on every rank, with its own plan and rank 0's in words."""
        digest = hashlib.blake2b(contents(plan), digest_size=_DIGEST_BYTES).digest()
        everyone = self._ranks.all_gather(torch.frombuffer(bytearray(digest), dtype=torch.uint8))
        if all(torch.equal(other, everyone[0]) for other in everyone):
            return
        mine = summary(plan)
        first = self._ranks.broadcast_bytes(mine.encode()).decode()
        raise RankDivergedError(f"the ranks plan different steps: rank {self._ranks.rank} {mine}; rank 0 {first}")


def summary(plan: StepPlan | None) -> str:
    """One line for a person: each row's request, positions, and what is special about it."""
    if plan is None:
        return "plans nothing"
    rows = [
        f"{row.request.group.message.request_id}#{row.request.choice_index} at {row.start}-{row.end - 1}"
        + (f" with drafts {list(row.draft_token_ids)}" if row.draft_token_ids else "")
        + f" in pages {list(row.block_table)}"
        for row in plan.rows
    ]
    return f"plans step {plan.step}: " + ", ".join(rows)


def contents(plan: StepPlan | None) -> bytes:
    """Everything in a plan that the runner or the sampler reads."""
    rows = () if plan is None else plan.rows
    return msgspec.msgpack.encode(
        (
            0 if plan is None else plan.step,
            [
                (
                    row.request.key,
                    row.request.group.seed,
                    list(row.token_ids),
                    row.start,
                    list(row.block_table),
                    row.samples,
                    row.output_position,
                    row.draft_token_ids,
                    row.pending_row,
                    row.score_from,
                    row.residency,
                )
                for row in rows
            ],
        )
    )

"""What one step computes, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.messages import TokenLogprob
from scheduler.requests.request import Request


@dataclass(frozen=True, slots=True, eq=False)
class PlanRow:
    """One request's part of a step: ``token_ids`` at positions ``start, start + 1, ...``."""

    request: Request
    token_ids: Sequence[int]
    """The last ``len(draft_token_ids)`` of them are guesses; the last is a placeholder where ``pending_row`` is set."""
    start: int
    block_table: Sequence[int]
    """The request's own list: a launch reads it before it returns."""
    samples: bool
    """Whether tokens are drawn behind the row's last accepted token (and behind every draft)."""
    output_position: int = 0
    """0-based output position of the first drawn token."""
    draft_token_ids: tuple[int, ...] = ()
    pending_row: int | None = None
    """Row of the step launched before this one that draws this row's last token; unknown to the CPU so far."""
    score_from: int | None = None
    """First prompt position whose logits give a prompt log-probability (of the token after it); ``None``: none."""
    residency: int = 0
    """``Request.residency`` at planning: a row of an earlier one says nothing about the request's present pages."""

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    step: int
    rows: tuple[PlanRow, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)


@dataclass(slots=True)
class RowResult:
    token_ids: Sequence[int] = ()
    """Drawn tokens: the drafts that agree and one more; empty for a row that does not sample."""
    logprobs: list[TokenLogprob] | None = None
    """One for each of ``token_ids``, where the request asks."""
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    """Of the prompt tokens at ``score_from + 1`` and on."""
    error: str | None = None
    """Why this request cannot go on; the other rows are unharmed."""


@dataclass(slots=True)
class StepResult:
    """One result for each row of the plan, in its order."""

    rows: list[RowResult]

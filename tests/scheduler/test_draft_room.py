"""How many drafts a step has room for."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_fakes import VOCAB_SIZE, Harness

from scheduler.drafters.combination import CombinedDrafter
from scheduler.drafters.source import DraftSource


class Eager(DraftSource):
    """Proposes as many tokens as it may."""

    name = "eager"

    def propose(self, request: Any, behind: tuple[int, ...], max_tokens: int) -> list[int]:
        return [1] * max_tokens


@pytest.mark.parametrize(
    ("num_requests", "row_tile", "most"), [(1, 1, 5), (3, 1, 15), (1, 4, 4), (3, 4, 4), (4, 4, 4), (5, 4, 8)]
)
def test_drafts_fill_a_tile_and_never_begin_another(num_requests: int, row_tile: int, most: int) -> None:
    harness = Harness(0, drafter=CombinedDrafter([Eager()], VOCAB_SIZE), max_draft_tokens=4)
    harness.planner._row_tile = row_tile
    for index in range(num_requests):
        harness.submit(f"r{index}", [index, 7, 9], max_tokens=12)
    harness.run()
    decodes = [plan for plan in harness.executor.plans if all(row.start >= 3 for row in plan.rows)]
    assert max(plan.num_tokens for plan in decodes) == most


def test_a_prompt_among_others_begins_no_tile_for_its_drafts() -> None:
    harness = Harness(0, drafter=CombinedDrafter([Eager()], VOCAB_SIZE), max_draft_tokens=4, max_batch_tokens=64)
    harness.planner._row_tile = 4
    for index in range(4):
        harness.submit(f"r{index}", [index, 7, 9], max_tokens=12)
    harness.step(1)
    assert [len(row.draft_token_ids) for row in harness.executor.plans[0].rows] == [1, 0, 0, 0]

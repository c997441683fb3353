"""Every collective gives each rank what it should, and a lost rank is noticed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from collective_functions import exact_sums, meet_as, state_facts, state_facts_late, sum_forever, use_each
from harness import RankProcesses


@pytest.mark.parametrize("size", [2, 3])
def test_each_collective_does_what_it_says(rank_processes: RankProcesses, size: int) -> None:
    results = rank_processes.run(use_each, size=size)
    own = torch.arange(6, dtype=torch.float32).view(2, 3)
    total = (size * own + 10 * sum(range(size))).tolist()
    for rank, result in enumerate(results):
        columns = torch.cat([own + 10 * other for other in range(size)], dim=1).tolist()
        assert result == {
            "sum": total,
            "exact sum": total,
            "columns": None if rank else columns,
            "broadcast": [0, 7],
            "short": b"short",
            "long is whole": True,
            "gathered": list(range(size)),
            "smallest": 6 - size,
        }


@pytest.mark.parametrize("size", [2, 3])
def test_the_bits_of_an_exact_sum_depend_on_no_neighbour(rank_processes: RankProcesses, size: int) -> None:
    generator = torch.Generator().manual_seed(1)
    parts = [torch.randn(50, 577, generator=generator) for _ in range(size)]
    expected = parts[0] + parts[1]
    for part in parts[2:]:
        expected = expected + part
    for whole, rows in rank_processes.run(exact_sums, parts, size=size):
        assert torch.equal(whole, expected)
        assert torch.equal(rows, expected)


def test_ranks_that_state_other_facts_are_told_which(rank_processes: RankProcesses) -> None:
    agreed, other = {"version": "1", "dtype": "float32"}, {"version": "1", "dtype": "bfloat16"}
    assert rank_processes.run(state_facts, [agreed, agreed]) == ["", ""]
    for message in rank_processes.run(state_facts, [agreed, other]):
        assert "rank 1 and rank 0 differ in dtype: 'bfloat16' and 'float32'" in message
    for message in rank_processes.run(state_facts, [agreed, {"version": "1"}]):
        assert "rank 1 and rank 0 differ in dtype: None and 'float32'" in message


def test_a_rank_that_is_late_is_still_told_which(rank_processes: RankProcesses) -> None:
    for message in rank_processes.run(state_facts_late, [{"dtype": "float32"}, {"dtype": "bfloat16"}]):
        assert "differ in dtype" in message


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ([(0, 2), (1, 3)], "start every node with the same --tp"),
        ([(0, 2), (0, 2)], "another process is rank 0 already"),
        ([(0, 3), (1, 3)], "rank 2 of 3 did not come"),
    ],
)
def test_ranks_that_cannot_meet_say_why(
    rank_processes: RankProcesses, places: list[tuple[int, int]], said: str
) -> None:
    messages = rank_processes.run(meet_as, places)
    assert any(said in message for message in messages), messages


def test_the_others_notice_a_rank_that_is_killed(tmp_path: Path) -> None:
    has_begun = tmp_path / "begun"
    with RankProcesses() as processes:
        victim = processes.start(sum_forever, has_begun, size=3)[1]
        while not has_begun.exists():
            time.sleep(0.05)
        began = time.monotonic()
        victim.kill()
        first, second, third = processes.outcomes(timeout=15)
        assert time.monotonic() - began < 5
        assert (first, third) == ((True, "noticed"), (True, "noticed"))
        assert second == (False, "ended with exit code -9")

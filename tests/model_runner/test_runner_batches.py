"""What one forward pass may hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from model_runner.forward_row import ForwardRow
from model_runner.runner import ModelRunner

TOKEN_IDS = random.Random(2).choices(range(101), k=40)


@pytest.fixture(scope="module", params=["float32", "bfloat16", "float16"])
def runner(
    request: pytest.FixtureRequest, make_checkpoint: Callable[..., Path], load_runner: Callable[..., ModelRunner]
) -> ModelRunner:
    return load_runner(make_checkpoint("llama"), dtype=request.param)


def test_logits_come_in_the_order_of_the_rows(runner: ModelRunner, make_row: Callable[..., ForwardRow]) -> None:
    # Of very different lengths, so that a backend has reason to arrange them.
    texts = [TOKEN_IDS[:3], TOKEN_IDS, TOKEN_IDS[5:8], TOKEN_IDS[9:10], TOKEN_IDS[::-1], TOKEN_IDS[1:2]]
    tables = [list(range(3 * index, 3 * index + 3)) for index in range(len(texts))]
    num_logits = [2, 1, 3, 1, 0, 1]
    rows = [
        make_row(text, table, num_logits=count) for text, table, count in zip(texts, tables, num_logits, strict=True)
    ]
    together = runner.forward(rows)
    alone = torch.cat([runner.forward([row]) for row in rows])
    assert together.shape == (sum(num_logits), runner.vocab_size)
    torch.testing.assert_close(together, alone, atol=0.25, rtol=0.05)


def test_a_pending_token_is_taken_from_the_previous_ids(
    runner: ModelRunner, make_row: Callable[..., ForwardRow]
) -> None:
    previous = torch.tensor([7, TOKEN_IDS[20], 9])
    for table in (range(3), range(3, 6)):
        runner.forward([make_row(TOKEN_IDS, table, stop=20, num_logits=0)])
    known = runner.forward([make_row(TOKEN_IDS, range(3), start=20, stop=21)])
    pending = ForwardRow([0], 20, [3, 4, 5], 1, pending_index=1)
    assert torch.equal(runner.forward([pending], previous), known)


def test_a_pending_token_without_previous_ids_is_an_error(runner: ModelRunner) -> None:
    with pytest.raises(ValueError, match="previous_token_ids"):
        runner.forward([ForwardRow([0], 0, [0], 1, pending_index=0)])


def test_what_ran_before_in_a_page_never_reaches_another_text(
    runner: ModelRunner, make_row: Callable[..., ForwardRow]
) -> None:
    tables = ([0, 1, 2], [3, 4, 5])
    rows = [make_row(TOKEN_IDS[:18], table) for table in tables]
    expected = runner.forward(rows)
    for pages in runner._attention._cache.pages:  # type: ignore[attr-defined]
        pages[:6] = float("nan")
    assert torch.equal(runner.forward(rows), expected)


def test_rolled_back_drafts_leave_no_trace(runner: ModelRunner, make_row: Callable[..., ForwardRow]) -> None:
    expected = [runner.forward([make_row(TOKEN_IDS, range(3), start=a, stop=b)]) for a, b in ((0, 14), (14, 15))]
    runner.forward([make_row(TOKEN_IDS, range(3, 6), stop=14)])
    runner.forward([ForwardRow([*TOKEN_IDS[14:15], 3, 4, 5, 6], 14, [3, 4, 5], 5)])
    again = runner.forward([make_row(TOKEN_IDS, range(3, 6), start=14, stop=15)])
    assert torch.equal(again, expected[1])

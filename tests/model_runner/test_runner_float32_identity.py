"""At float32 a text's logits are the same bits in whatever company and in whatever pieces they are computed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_runner.forward_row import ForwardRow
from model_runner.layers.linear import build_linear
from model_runner.runner import ModelRunner

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True}),
    "llama of odd sizes": (
        "llama",
        {
            "hidden_size": 36,
            "intermediate_size": 33,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 14,
        },
    ),
    "mistral with a window": ("mistral", {"sliding_window": 20}),
    "qwen3_moe": (
        "qwen3_moe",
        {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "head_dim": 16},
    ),
    "gemma2 through transformers": ("gemma2", {"head_dim": 16, "sliding_window": 20}),
}
NUM_PAGES = 256


@pytest.fixture(scope="module", params=list(CASES))
def runner(
    request: pytest.FixtureRequest, make_checkpoint: Callable[..., Path], load_runner: Callable[..., ModelRunner]
) -> ModelRunner:
    model_type, overrides = CASES[request.param]
    return load_runner(make_checkpoint(model_type, **overrides), kv_cache_tokens=NUM_PAGES * 16)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    length=st.integers(1, 300),
    cuts=st.lists(st.integers(1, 299), max_size=4),
    neighbours=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 200), st.integers(0, 2)), max_size=6),
    seed=st.integers(0, 2**16),
)
def test_neighbours_chunks_and_pages_change_no_bit(
    runner: ModelRunner,
    make_row: Callable[..., ForwardRow],
    run_in_chunks: Callable[..., torch.Tensor],
    length: int,
    cuts: list[int],
    neighbours: list[tuple[int, int, int]],
    seed: int,
) -> None:
    generator = random.Random(seed)
    token_ids = generator.choices(range(runner.vocab_size), k=length)
    free = iter(generator.sample(range(NUM_PAGES), NUM_PAGES))
    alone = run_in_chunks(runner, token_ids, [next(free) for _ in range(-(-length // 16))])

    others = []
    for count, start, num_logits in neighbours:
        pages = [next(free) for _ in range(-(-(start + count) // 16))]
        tokens = generator.choices(range(runner.vocab_size), k=count)
        others.append(ForwardRow(tokens, start, pages, min(num_logits, count)))
    place = generator.randint(0, len(others))
    skipped = sum(other.num_logits for other in others[:place])
    pages = [next(free) for _ in range(-(-length // 16))]
    bounds = sorted({0, length, *(cut for cut in cuts if cut < length)})
    parts = []
    for start, stop in itertools.pairwise(bounds):
        row = make_row(token_ids, pages, start=start, stop=stop)
        logits = runner.forward([*others[:place], row, *others[place:]])
        parts.append(logits[skipped : skipped + stop - start])
    assert torch.equal(torch.cat(parts), alone)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompt=st.integers(1, 140), drafts=st.lists(st.integers(0, 9), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_drafts_verified_together_have_the_bits_of_plain_decoding(
    runner: ModelRunner,
    make_row: Callable[..., ForwardRow],
    run_in_chunks: Callable[..., torch.Tensor],
    prompt: int,
    drafts: list[int],
    seed: int,
) -> None:
    generator = random.Random(seed)
    generated = 30
    token_ids = generator.choices(range(runner.vocab_size), k=prompt + generated)
    plain = run_in_chunks(runner, token_ids, range(20), cuts=range(prompt, len(token_ids)))
    pages = range(20, 40)
    runner.forward([make_row(token_ids, pages, stop=prompt, num_logits=0)])
    position, turn = prompt, 0
    while position < len(token_ids):
        # Some drafts are right, then come wrong ones, whose keys and values are overwritten by the next turn.
        right = min(1 + drafts[turn % len(drafts)], len(token_ids) - position)
        wrong = generator.choices(range(runner.vocab_size), k=turn % 3)
        row = ForwardRow([*token_ids[position : position + right], *wrong], position, list(pages), right + len(wrong))
        logits = runner.forward([row])
        assert torch.equal(logits[:right], plain[position : position + right])
        position, turn = position + right, turn + 1


def test_a_step_of_which_nobody_wants_logits_has_none() -> None:
    for is_exact in (True, False):
        for is_shared in (True, False):
            linear = build_linear(torch.ones(24, 8), None, is_exact=is_exact, is_shared=is_shared)
            assert linear(torch.ones(0, 8)).shape == (0, 24)

"""At float32 a text's logits are the same bits in whatever company, also where the sums go over several ranks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import RankProcesses
from model_functions import compute

from model_runner.forward_row import ForwardRow

ODD: dict[str, Any] = {
    "hidden_size": 36,
    "intermediate_size": 33,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 14,
}
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "llama on two": ("llama", 2, {"attention_bias": True, "mlp_bias": True}),
    "llama of odd sizes on three": ("llama", 3, ODD),
    "qwen3_moe on two": (
        "qwen3_moe",
        2,
        {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "head_dim": 16},
    ),
    "qwen2_moe on three": (
        "qwen2_moe",
        3,
        {
            **ODD,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 21,
            "shared_expert_intermediate_size": 33,
        },
    ),
    "gemma2, through transformers, on three": (
        "gemma2",
        3,
        {**ODD, "num_key_value_heads": 3, "sliding_window": 20, "tie_word_embeddings": True},
    ),
}
NUM_PAGES = 256
NUM_TEXTS = 6


@pytest.mark.parametrize("case", list(CASES))
def test_neighbours_chunks_and_pages_change_no_bit(
    case: str, rank_processes: RankProcesses, make_checkpoint: Callable[..., Path]
) -> None:
    model_type, size, overrides = CASES[case]
    path = make_checkpoint(model_type, **overrides)
    generator = random.Random(case)
    passes: list[list[ForwardRow]] = []
    wanted: list[slice] = []  # of each pass, the rows of the text
    for _ in range(NUM_TEXTS):
        length = generator.randint(1, 200)
        text = generator.choices(range(101), k=length)
        free = iter(generator.sample(range(NUM_PAGES), NUM_PAGES))
        pages = [next(free) for _ in range(-(-length // 16))]
        passes.append([ForwardRow(text, 0, pages, length)])
        wanted.append(slice(0, length))
        others = []
        for _ in range(generator.randint(0, 5)):
            count, start = generator.randint(1, 60), generator.randint(0, 100)
            others.append(
                ForwardRow(
                    generator.choices(range(101), k=count),
                    start,
                    [next(free) for _ in range(-(-(start + count) // 16))],
                    min(count, generator.randint(0, 2)),
                )
            )
        place = generator.randint(0, len(others))
        skipped = sum(other.num_logits for other in others[:place])
        pages = [next(free) for _ in range(-(-length // 16))]
        cuts = [cut for cut in generator.sample(range(1, 200), 3) if cut < length]
        for start, stop in itertools.pairwise(sorted({0, length, *cuts})):
            row = ForwardRow(text[start:stop], start, pages, stop - start)
            passes.append([*others[:place], row, *others[place:]])
            wanted.append(slice(skipped, skipped + stop - start))
    logits = rank_processes.run(compute, path, passes, {"kv_cache_tokens": NUM_PAGES * 16}, size=size)[0]
    own = [each[rows] for each, rows in zip(logits, wanted, strict=True)]
    num_alone = 0
    position = 0
    while position < len(own):
        alone, position = own[position], position + 1
        pieces: list[torch.Tensor] = []
        while sum(map(len, pieces)) < len(alone):
            pieces.append(own[position])
            position += 1
        assert torch.equal(torch.cat(pieces), alone)
        num_alone += 1
    assert num_alone == NUM_TEXTS

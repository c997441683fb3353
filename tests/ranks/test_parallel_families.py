"""A model cut among ranks computes what the whole one does, and what cannot be cut is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import RankProcesses
from model_functions import compute, count_parameters, load, try_to_load

from model_runner.forward_row import ForwardRow

HEADS: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 4}
MOE: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied, of a vocabulary that divides": ("llama", {"tie_word_embeddings": True, "vocab_size": 128}),
    "llama, tied, with biases": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama with two key-value heads": ("llama", {"num_key_value_heads": 2, "attention_bias": True}),
    "llama with one key-value head": ("llama", {"num_key_value_heads": 1}),
    "mistral with a window": ("mistral", {"sliding_window": 20}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4}),
    "qwen2": ("qwen2", {}),
    "qwen2_moe": ("qwen2_moe", {**MOE, "shared_expert_intermediate_size": 48}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3_moe": ("qwen3_moe", {**MOE, "head_dim": 16, "norm_topk_prob": True, "mlp_only_layers": [1]}),
    # Through transformers' own code:
    "gemma2, tied (soft cap, window)": (
        "gemma2",
        {"head_dim": 16, "sliding_window": 20, "tie_word_embeddings": True},
    ),
    "gpt_oss (nothing but the vocabulary cut)": (
        "gpt_oss",
        {"head_dim": 16, "num_local_experts": 4, "sliding_window": 20},
    ),
    "phi3 (gathered in the middle)": ("phi3", {"sliding_window": 20}),
    "gpt_neox (biases)": ("gpt_neox", {"attention_bias": True}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "sliding_window": None}),
    "deepseek_v3 (whole attention)": (
        "deepseek_v3",
        {
            "num_key_value_heads": 8,
            "kv_lora_rank": 16,
            "q_lora_rank": 24,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 12,
            "n_routed_experts": 8,
            "n_group": 2,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "first_k_dense_replace": 1,
        },
    ),
}


def ragged_passes(vocab_size: int) -> list[list[ForwardRow]]:
    """A prefill of two texts, then a step that decodes one and drafts for the other."""
    generator = random.Random(3)
    long, short = (generator.choices(range(vocab_size), k=length) for length in (60, 9))
    return [
        [ForwardRow(long[:50], 0, range(4), 50), ForwardRow(short[:5], 0, [9], 0)],
        [ForwardRow(short[5:], 5, [9], 3), ForwardRow(long[50:51], 50, range(4), 1)],
    ]


@pytest.mark.parametrize("case", list(CASES))
def test_logits_of_two_and_four_ranks_are_those_of_one(
    case: str, rank_processes: RankProcesses, make_checkpoint: Callable[..., Path]
) -> None:
    model_type, overrides = CASES[case]
    path = make_checkpoint(model_type, **{**HEADS, **overrides})
    whole = load(path)
    passes = ragged_passes(whole.vocab_size)
    expected = [whole.forward(rows) for rows in passes]
    for size in (2, 4):
        first, *others = rank_processes.run(compute, path, passes, {}, size=size)
        for mine, wanted in zip(first, expected, strict=True):
            assert mine.dtype == torch.float32
            torch.testing.assert_close(mine, wanted, atol=1e-4, rtol=1e-4)
        for logits in others:
            assert [tuple(each.shape) for each in logits] == [(50, 0), (4, 0)]


def test_bfloat16_logits_of_two_ranks_stay_near_those_of_one(
    rank_processes: RankProcesses, make_checkpoint: Callable[..., Path]
) -> None:
    path = make_checkpoint("llama", **HEADS, attention_bias=True)
    passes = ragged_passes(101)
    whole = load(path)
    expected = torch.cat([whole.forward(rows) for rows in passes])
    logits = torch.cat(rank_processes.run(compute, path, passes, {"dtype": "bfloat16"}, size=2)[0])
    assert (logits - expected).abs().mean() < 0.05 * expected.std()


def test_random_weights_are_the_same_into_however_many_ranks_they_are_cut(
    rank_processes: RankProcesses, make_checkpoint: Callable[..., Path]
) -> None:
    passes = ragged_passes(101)
    for path in (make_checkpoint("qwen3_moe", **HEADS, **MOE), make_checkpoint("mixtral", **HEADS)):
        whole = load(path, load_format="dummy", seed=5)
        expected = torch.cat([whole.forward(rows) for rows in passes])
        logits = torch.cat(rank_processes.run(compute, path, passes, {"load_format": "dummy", "seed": 5}, size=4)[0])
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)


def test_each_rank_holds_its_share_of_a_model_of_transformers(
    rank_processes: RankProcesses, make_checkpoint: Callable[..., Path]
) -> None:
    path = make_checkpoint("mixtral", **HEADS, num_local_experts=4, vocab_size=128)
    norms_and_routers = 5 * 64 + 2 * 4 * 64
    whole = load(path).num_parameters
    for held in rank_processes.run(count_parameters, path, size=2):
        assert held == (whole - norms_and_routers) // 2 + norms_and_routers


@pytest.mark.parametrize(
    ("model_type", "overrides", "size", "message"),
    [
        (
            "llama",
            {},
            3,
            "3 tensor-parallel ranks do not divide the model's 8 attention heads, 4 key-value heads; "
            "--tp can be 1, 2, 4 or 8",
        ),
        (
            "llama",
            {"intermediate_size": 98},
            4,
            "do not divide the model's intermediate size of 98; --tp can be 1 or 2",
        ),
        (
            "qwen3",
            {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48},
            2,
            "do not divide the model's 3 key-value heads; --tp can be 1, 3 or 6",
        ),
        (
            "gemma2",
            {"num_key_value_heads": 2},
            4,
            "4 tensor-parallel ranks do not divide the model's 2 key-value heads; --tp can be 1 or 2",
        ),
        ("gpt2", {"n_inner": None}, 2, "no tensor-parallel plan for it; serve it without --tp"),
    ],
)
def test_sizes_that_do_not_divide_are_refused_with_those_that_would(
    model_type: str,
    overrides: dict[str, Any],
    size: int,
    message: str,
    rank_processes: RankProcesses,
    make_checkpoint: Callable[..., Path],
) -> None:
    path = make_checkpoint(model_type, **{**HEADS, **overrides})
    for said in rank_processes.run(try_to_load, [path] * size, [{}] * size, size=size):
        assert message in said


def test_ranks_that_would_load_something_else_are_told_before_they_read(
    rank_processes: RankProcesses, make_checkpoint: Callable[..., Path]
) -> None:
    path, other = make_checkpoint("llama", **HEADS), make_checkpoint("llama", **HEADS, tie_word_embeddings=True)
    for paths, settings, fact in (
        ([path, other], [{}, {}], "the model's configuration"),
        ([path, path], [{}, {"dtype": "bfloat16"}], "dtype: 'bfloat16' and 'float32'"),
        ([path, path], [{}, {"page_size": 32}], "page size: '32' and '16'"),
        ([path, path], [{}, {"context_length": 100}], "context length: '100' and '512'"),
        ([path, path], [{}, {"load_format": "dummy"}], "the model's weights"),
    ):
        for said in rank_processes.run(try_to_load, paths, settings):
            assert f"rank 1 and rank 0 differ in {fact}" in said

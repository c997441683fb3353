"""Logits agree with transformers' own code on the same weights, however the text is computed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from model_runner.forward_row import ForwardRow
from model_runner.runner import ModelRunner

MOE: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with wide heads": ("llama", {"head_dim": 32}),
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
    "linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
    "dynamic rope": ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}}),
    "llama3 rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "yarn rope": (
        "qwen3",
        {
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            },
        },
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral with a window": ("mistral", {"sliding_window": 20}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4}),
    "qwen2": ("qwen2", {}),
    "qwen2 with some windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen2_moe": ("qwen2_moe", {**MOE, "shared_expert_intermediate_size": 48}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3_moe": ("qwen3_moe", {**MOE, "head_dim": 16, "norm_topk_prob": True, "mlp_only_layers": [1]}),
    # Through transformers' own code:
    "gemma2 (soft cap, window)": ("gemma2", {"head_dim": 16, "sliding_window": 20}),
    "gpt_oss (sinks, window)": ("gpt_oss", {"head_dim": 16, "num_local_experts": 4, "sliding_window": 20}),
    "phi3": ("phi3", {"sliding_window": 20}),
    "gpt_neox": ("gpt_neox", {}),
    "deepseek_v3 (value width)": (
        "deepseek_v3",
        {
            "num_key_value_heads": 4,
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
        },
    ),
}


@pytest.fixture(scope="module", params=list(CASES))
def checkpoint(request: pytest.FixtureRequest, make_checkpoint: Callable[..., Path]) -> Path:
    model_type, overrides = CASES[request.param]
    return make_checkpoint(model_type, **overrides)


def test_logits_agree_in_one_piece_in_chunks_from_cache_and_after_preemption(
    checkpoint: Path,
    load_runner: Callable[..., ModelRunner],
    reference_logits: Callable[..., torch.Tensor],
    make_row: Callable[..., ForwardRow],
    run_in_chunks: Callable[..., torch.Tensor],
) -> None:
    runner = load_runner(checkpoint)
    token_ids = random.Random(3).choices(range(runner.vocab_size), k=150)
    expected = reference_logits(checkpoint, token_ids)
    pages = random.Random(4).sample(range(runner.num_pages), 20)

    def agrees(actual: torch.Tensor, wanted: torch.Tensor = expected) -> None:
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, wanted, atol=1e-4, rtol=1e-4)

    agrees(run_in_chunks(runner, token_ids, pages[:10]))
    agrees(run_in_chunks(runner, token_ids, pages[10:], cuts=[1, 17, 18, 80, 149]))
    # From the prefix cache: the first four pages are those of another text with the same beginning.
    shared = [*pages[:4], *pages[14:]]
    agrees(runner.forward([make_row(token_ids, shared, start=64)]), expected[64:])
    # Preempted: the pages went to another text meanwhile, and everything is computed again.
    run_in_chunks(runner, token_ids[::-1], pages[:10])
    agrees(run_in_chunks(runner, token_ids, pages[:10], cuts=[100]))


def test_bfloat16_logits_stay_near_the_reference_in_a_mixed_batch(
    make_checkpoint: Callable[..., Path],
    load_runner: Callable[..., ModelRunner],
    reference_logits: Callable[..., torch.Tensor],
    make_row: Callable[..., ForwardRow],
) -> None:
    for model_type, overrides in (
        ("llama", {}),
        ("mistral", {"sliding_window": 20}),
        ("gemma2", {"head_dim": 16, "sliding_window": 20}),
    ):
        checkpoint = make_checkpoint(model_type, **overrides)
        runner = load_runner(checkpoint, dtype="bfloat16", kv_cache_tokens=4096)
        generator = random.Random(5)
        texts = [generator.choices(range(runner.vocab_size), k=length) for length in (3, 150, 40, 300, 40, 20)]
        free = iter(range(runner.num_pages))
        tables = [[next(free) for _ in range(-(-len(text) // 16))] for text in texts]
        expected = [reference_logits(checkpoint, text) for text in texts]
        # All but the ends: one batch of prefills; then decodes, drafts and a later chunk together.
        cuts = [2, 149, 39, 100, 36, 0]
        runner.forward(
            [
                make_row(text, table, stop=cut, num_logits=0)
                for text, table, cut in zip(texts, tables, cuts, strict=True)
                if cut
            ]
        )
        logits = runner.forward(
            [make_row(text, table, start=cut) for text, table, cut in zip(texts, tables, cuts, strict=True)]
        )
        wanted = torch.cat([logit[cut:] for logit, cut in zip(expected, cuts, strict=True)])
        error = (logits - wanted).abs().mean() / wanted.abs().mean()
        assert error < 0.06, f"{model_type}: mean relative error {error:.3f}"


def test_an_unknown_rope_type_is_refused_by_name(
    make_checkpoint: Callable[..., Path], load_runner: Callable[..., ModelRunner], tmp_path: Path
) -> None:
    import json

    from model_runner.errors import ModelLoadError

    settings = json.loads((make_checkpoint("llama") / "config.json").read_text())
    settings["rope_parameters"] = {"rope_type": "spiral", "rope_theta": 10000.0}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelLoadError, match="spiral"):
        load_runner(tmp_path, load_format="dummy")


def test_longrope_takes_its_long_factors_for_every_text_of_a_long_context(
    make_checkpoint: Callable[..., Path],
    load_runner: Callable[..., ModelRunner],
    reference_logits: Callable[..., torch.Tensor],
    run_in_chunks: Callable[..., torch.Tensor],
) -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [1.0 + 0.5 * index for index in range(8)],
        "original_max_position_embeddings": 64,
        "factor": 8.0,
    }
    for model_type in ("llama", "phi3"):
        checkpoint = make_checkpoint(model_type, rope_parameters=rope, sliding_window=None)
        token_ids = random.Random(3).choices(range(101), k=100)
        long_context = load_runner(checkpoint)
        short_context = load_runner(checkpoint, context_length=64)
        expected = reference_logits(checkpoint, token_ids)
        torch.testing.assert_close(
            run_in_chunks(long_context, token_ids, range(7), cuts=[10]), expected, atol=1e-4, rtol=1e-4
        )
        expected = reference_logits(checkpoint, token_ids[:60])
        torch.testing.assert_close(
            run_in_chunks(short_context, token_ids[:60], range(7)), expected, atol=1e-4, rtol=1e-4
        )

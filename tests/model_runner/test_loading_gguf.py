"""A GGUF file and the safetensors it was converted from are the same model."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_checkpoints import write_gguf

from model_runner.errors import ModelLoadError
from model_runner.loading.gguf_source import _PlainReader
from model_runner.runner import ModelRunner

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "llama", {}),
    "llama tied": ("llama", "llama", {"tie_word_embeddings": True}),
    "llama with biases": ("llama", "llama", {"attention_bias": True}),
    "linear rope": (
        "llama",
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}},
    ),
    "smollm3": ("smollm3", "smollm3", {"num_hidden_layers": 4, "attention_bias": False}),
    "qwen2": ("qwen2", "qwen2", {}),
    "qwen3": ("qwen3", "qwen3", {"head_dim": 16}),
    "qwen3moe": (
        "qwen3moe",
        "qwen3_moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "head_dim": 16,
            "norm_topk_prob": True,
        },
    ),
}


@pytest.mark.parametrize("case", list(CASES))
def test_gguf_gives_the_logits_of_its_safetensors(
    case: str,
    make_checkpoint: Callable[..., Path],
    load_runner: Callable[..., ModelRunner],
    run_in_chunks: Callable[..., torch.Tensor],
    tmp_path: Path,
) -> None:
    architecture, model_type, overrides = CASES[case]
    folder = make_checkpoint(model_type, **overrides)
    write_gguf(folder, tmp_path / "model.gguf", architecture)
    runner = load_runner(tmp_path / "model.gguf")
    token_ids = random.Random(1).choices(range(runner.vocab_size), k=70)
    assert torch.equal(
        run_in_chunks(runner, token_ids, range(5)), run_in_chunks(load_runner(folder), token_ids, range(5))
    )


def test_precomputed_rope_factors_divide_the_frequencies(
    make_checkpoint: Callable[..., Path],
    load_runner: Callable[..., ModelRunner],
    run_in_chunks: Callable[..., torch.Tensor],
    tmp_path: Path,
) -> None:
    folder = make_checkpoint("llama")
    write_gguf(folder, tmp_path / "model.gguf", "llama", **{"rope_freqs.weight": torch.full((8,), 4.0)})
    linear = make_checkpoint("llama", rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0})
    token_ids = random.Random(1).choices(range(101), k=70)
    torch.testing.assert_close(
        run_in_chunks(load_runner(tmp_path / "model.gguf"), token_ids, range(5)),
        run_in_chunks(load_runner(linear), token_ids, range(5)),
        atol=1e-4,
        rtol=1e-4,
    )


def test_an_architecture_we_do_not_load_is_refused_by_name(
    make_checkpoint: Callable[..., Path], load_runner: Callable[..., ModelRunner], tmp_path: Path
) -> None:
    write_gguf(make_checkpoint("llama"), tmp_path / "model.gguf", "rwkv7")
    with pytest.raises(ModelLoadError, match=r"rwkv7.*llama.*qwen3"):
        load_runner(tmp_path / "model.gguf")


def test_a_tensor_without_a_place_is_refused_by_name(
    make_checkpoint: Callable[..., Path], load_runner: Callable[..., ModelRunner], tmp_path: Path
) -> None:
    extra = {"model.layers.0.self_attn.q_norm.weight": torch.ones(16)}
    write_gguf(make_checkpoint("llama"), tmp_path / "model.gguf", "llama", **extra)
    with pytest.raises(ModelLoadError, match=r"model\.layers\.0\.self_attn\.q_norm\.weight"):
        load_runner(tmp_path / "model.gguf")


def test_a_cut_file_is_refused(
    make_checkpoint: Callable[..., Path], load_runner: Callable[..., ModelRunner], tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(make_checkpoint("llama"), path, "llama")
    content = path.read_bytes()
    for length in (0, 3, 100, len(content) // 2):
        path.write_bytes(content[:length])
        with pytest.raises(ModelLoadError, match="GGUF"):
            load_runner(path)


def test_lists_of_any_kind_are_stepped_over(tmp_path: Path) -> None:
    path = tmp_path / "lists.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("before", ["a", "", "é" * 300])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("fractions", [0.5, 1.5])
    writer.add_uint32("after", 7)
    writer.add_tensor("weight", np.ones((2, 3), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ours, theirs = _PlainReader(path), gguf.GGUFReader(path)
    assert ours.get_field("after").contents() == 7
    assert list(ours.fields) == list(theirs.fields)
    assert [(tensor.name, tensor.data_offset) for tensor in ours.tensors] == [
        (tensor.name, tensor.data_offset) for tensor in theirs.tensors
    ]


def test_a_models_vocabulary_costs_no_object_for_each_text(smollm2_gguf: Path) -> None:
    field = _PlainReader(smollm2_gguf).get_field("tokenizer.ggml.tokens")
    assert len(field.parts) < 10

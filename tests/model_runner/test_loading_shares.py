"""A rank reads its own part of each tensor, and the parts are those of the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_checkpoints import write_gguf
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from model_runner.loading.gguf_source import GgufSource, _dequantize
from model_runner.loading.safetensors_source import SafetensorsSource
from model_runner.loading.source import Cut
from model_runner.models.decoder_weights import DecoderLoader
from model_runner.models.families import build_decoder_spec

MOE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
HEADS: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 128}
ON_EVERY_RANK = ("norm.weight", "mlp.gate.weight", "shared_expert_gate.weight")


class CountingSource(SafetensorsSource):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.num_bytes = 0

    def _load(self, name: str, shape: Sequence[int], cut: Cut | None) -> torch.Tensor:
        tensor = super()._load(name, shape, cut)
        self.num_bytes += tensor.nbytes
        return tensor


@pytest.mark.parametrize(
    ("model_type", "overrides"),
    [
        ("llama", {"mlp_bias": False, "attention_bias": False}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen2_moe", {**MOE, "shared_expert_intermediate_size": 48}),
        ("qwen3_moe", {**MOE, "head_dim": 16, "mlp_only_layers": [1]}),
    ],
)
@pytest.mark.parametrize("size", [2, 4])
def test_each_rank_reads_its_share_and_no_more(
    model_type: str, overrides: dict[str, Any], size: int, make_checkpoint: Callable[..., Path]
) -> None:
    folder = make_checkpoint(model_type, **{**HEADS, **overrides})
    expected = sum(
        tensor.nbytes if name.endswith(ON_EVERY_RANK) else tensor.nbytes // size
        for name, tensor in load_file(folder / "model.safetensors").items()
    )
    spec = build_decoder_spec(AutoConfig.from_pretrained(folder), context_length=512)
    for rank in range(size):
        source = CountingSource(folder)
        ranks: Any = SimpleNamespace(rank=rank, size=size)
        loader = DecoderLoader(
            spec,
            source,
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
            progress=lambda fraction: None,
            ranks=ranks,
        )
        loader.load()
        assert source.num_bytes == expected
        assert loader.num_parameters == expected // 4


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q5_0", "Q4_K", "Q6_K"])
def test_a_cut_of_a_quantised_tensor_is_that_of_its_values(kind: str) -> None:
    of_type = gguf.GGMLQuantizationType[kind]
    generator = np.random.default_rng(0)
    if kind in ("F32", "F16"):
        data = generator.standard_normal((6, 512)).astype({"F32": np.float32, "F16": np.float16}[kind])
    else:
        data = generator.integers(0, 100, gguf.quant_shape_to_byte_shape((6, 512), of_type), dtype=np.uint8)
    values = gguf.quants.dequantize(data, of_type)
    for cut in (Cut(0, 2, 5), Cut(1, 0, 256), Cut(1, 256, 512), Cut(1, 33, 35), Cut(1, 100, 411)):
        np.testing.assert_array_equal(_dequantize(data, of_type, cut), values[cut.index])


def test_a_gguf_file_gives_the_cuts_of_its_tensors(smollm2_gguf: Path) -> None:
    source = GgufSource(smollm2_gguf)
    for name, shape, cut in (
        ("model.layers.3.self_attn.q_proj.weight", (576, 576), Cut(0, 192, 384)),
        ("model.layers.3.self_attn.k_proj.weight", (192, 576), Cut(0, 128, 192)),
        ("model.layers.3.self_attn.o_proj.weight", (576, 576), Cut(1, 192, 384)),
        ("model.layers.3.mlp.down_proj.weight", (576, 1536), Cut(1, 512, 1024)),
        ("model.layers.3.input_layernorm.weight", (576,), Cut(0, 5, 9)),
    ):
        assert torch.equal(source.read(name, shape, cut), source.read(name, shape)[cut.index])


@pytest.mark.parametrize(
    ("architecture", "model_type", "overrides"),
    [("llama", "llama", {"attention_bias": True}), ("qwen3moe", "qwen3_moe", {**MOE, "head_dim": 16})],
)
def test_a_rank_gets_from_gguf_what_it_gets_from_safetensors(
    architecture: str,
    model_type: str,
    overrides: dict[str, Any],
    make_checkpoint: Callable[..., Path],
    tmp_path: Path,
) -> None:
    folder = make_checkpoint(model_type, **{**HEADS, **overrides})
    write_gguf(folder, tmp_path / "model.gguf", architecture)
    theirs, ours = SafetensorsSource(folder), GgufSource(tmp_path / "model.gguf")
    assert theirs.names() == ours.names()
    for name, whole in load_file(folder / "model.safetensors").items():
        for dim, size in enumerate(whole.shape):
            cut = Cut(dim, size // 4, size // 2)  # whole heads, where rows are those of heads
            assert torch.equal(theirs.read(name, whole.shape, cut), whole[cut.index])
            assert torch.equal(ours.read(name, whole.shape, cut), whole[cut.index])


def test_files_are_the_same_wherever_they_lie_and_other_weights_are_not(
    make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_checkpoint("llama")
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert SafetensorsSource(tmp_path).identity() == SafetensorsSource(folder).identity()
    tensors = load_file(folder / "model.safetensors")
    retrained = {name: tensor * 1.01 for name, tensor in tensors.items()}
    save_file(retrained, tmp_path / "model.safetensors", {"format": "pt"})
    assert SafetensorsSource(tmp_path).identity() != SafetensorsSource(folder).identity()
    other = SafetensorsSource(make_checkpoint("llama", tie_word_embeddings=True))
    assert other.identity() != SafetensorsSource(folder).identity()

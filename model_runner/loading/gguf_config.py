"""A Hugging Face configuration from a GGUF file's metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
from transformers import AutoConfig, PretrainedConfig

from model_runner.errors import ModelLoadError

MODEL_TYPES = {
    "llama": "llama",
    "mistral": "mistral",
    "smollm3": "smollm3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
}
"""``general.architecture`` to ``model_type``. Mistral's own files call themselves llama."""

PERMUTED_ARCHITECTURES = frozenset(("llama", "mistral", "smollm3"))
"""Architectures whose query and key rows the conversion interleaves."""


def build_config(reader: gguf.GGUFReader, path: Path) -> tuple[str, PretrainedConfig]:
    """
    The architecture's name and the model's configuration.

    Raises
    ------
    ModelLoadError
        If the architecture is not one of :data:`MODEL_TYPES`, or a key it needs is missing.
    """
    metadata = _Metadata(reader, path)
    architecture = str(metadata.require("general.architecture"))
    if architecture not in MODEL_TYPES:
        raise ModelLoadError(
            f"{path.name} holds architecture {architecture!r}; GGUF files are loaded for "
            f"{', '.join(sorted(MODEL_TYPES))} (other models: use their safetensors)"
        )
    metadata.architecture = architecture
    names = {tensor.name for tensor in reader.tensors}
    num_heads = int(metadata.of_model("attention.head_count"))
    hidden_size = int(metadata.of_model("embedding_length"))
    embedding = next((tensor for tensor in reader.tensors if tensor.name == "token_embd.weight"), None)
    if embedding is None:
        raise ModelLoadError(f"{path.name} has no tensor 'token_embd.weight'")
    settings: dict[str, Any] = {
        "vocab_size": int(embedding.shape[1]),
        "hidden_size": hidden_size,
        "intermediate_size": int(metadata.of_model("feed_forward_length")),
        "num_hidden_layers": int(metadata.of_model("block_count")),
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(metadata.of_model("attention.head_count_kv", num_heads)),
        "head_dim": int(metadata.of_model("attention.key_length", hidden_size // num_heads)),
        "max_position_embeddings": int(metadata.of_model("context_length")),
        "rms_norm_eps": float(metadata.of_model("attention.layer_norm_rms_epsilon")),
        "rope_parameters": _rope_parameters(metadata),
        "tie_word_embeddings": "output.weight" not in names,
        # A missing key means "none" here, whatever the class's default is.
        "sliding_window": metadata.of_model("attention.sliding_window", None),
    }
    settings["use_sliding_window"] = settings["sliding_window"] is not None
    has_bias = "blk.0.attn_q.bias" in names
    if architecture in ("qwen3", "qwen3moe", "llama", "smollm3"):
        settings["attention_bias"] = has_bias
        settings["mlp_bias"] = "blk.0.ffn_gate.bias" in names
    if architecture == "qwen3moe":
        settings["num_experts"] = int(metadata.of_model("expert_count"))
        settings["num_experts_per_tok"] = int(metadata.of_model("expert_used_count"))
        settings["moe_intermediate_size"] = int(metadata.of_model("expert_feed_forward_length"))
        settings["norm_topk_prob"] = True  # what llama.cpp computes for this architecture
    if metadata.of_model("expert_count", 0) and architecture != "qwen3moe":
        raise ModelLoadError(f"{path.name} is a mixture of experts of architecture {architecture!r}, not supported")
    return architecture, AutoConfig.for_model(MODEL_TYPES[architecture], **settings)


class _Metadata:
    def __init__(self, reader: gguf.GGUFReader, path: Path) -> None:
        self._reader = reader
        self._path = path
        self.architecture = ""

    def require(self, key: str) -> Any:
        field = self._reader.get_field(key)
        if field is None:
            raise ModelLoadError(f"{self._path.name} has no metadata {key!r}")
        return field.contents()

    def of_model(self, key: str, default: Any = ...) -> Any:
        key = f"{self.architecture}.{key}"
        field = self._reader.get_field(key)
        return (
            self.require(key) if field is None and default is ... else (default if field is None else field.contents())
        )


def _rope_parameters(metadata: _Metadata) -> dict[str, Any]:
    theta = float(metadata.of_model("rope.freq_base", 10000.0))
    rope_type = str(metadata.of_model("rope.scaling.type", "none"))
    parameters: dict[str, Any] = {"rope_theta": theta, "rope_type": "default" if rope_type == "none" else rope_type}
    if rope_type in ("linear", "yarn"):
        parameters["factor"] = float(metadata.of_model("rope.scaling.factor"))
    if rope_type == "yarn":
        parameters["original_max_position_embeddings"] = int(metadata.of_model("rope.scaling.original_context_length"))
    return parameters

"""Tiny random checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB_SIZE = 101

TINY: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}


def write_checkpoint(folder: Path, model_type: str, *, max_shard_size: str = "1GB", **overrides: Any) -> None:
    """Random weights of a model of this type, the same on every call, and its configuration."""
    torch.manual_seed(7)
    config = AutoConfig.for_model(model_type, **{**TINY, **overrides})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Larger than a trained model's, so that attention is far from uniform.
            scale = 0.3 if parameter.dim() > 1 else 0.1
            offset = 1.0 if name.endswith("norm.weight") else 0.0
            parameter.copy_(torch.randn_like(parameter) * scale + offset)
    model.save_pretrained(folder, max_shard_size=max_shard_size)

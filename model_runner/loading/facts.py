"""What the ranks of a group must agree on before any of them reads a weight."""

from __future__ import annotations

import hashlib
import json
from importlib import metadata

import torch
import transformers
from transformers import PretrainedConfig

from model_runner.config import RunnerConfig
from model_runner.loading.source import TensorSource

_OF_THIS_INSTALLATION = frozenset(("_name_or_path", "transformers_version"))


def state_facts(
    config: RunnerConfig,
    model_config: PretrainedConfig,
    source: TensorSource,
    *,
    context_length: int,
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, str]:
    """Name and value of each fact; paths are none, since machines may keep the same files in different places."""
    settings = {name: value for name, value in model_config.to_dict().items() if name not in _OF_THIS_INSTALLATION}
    canonical = json.dumps(settings, sort_keys=True, default=str).encode()
    return {
        "Scansion's version": metadata.version("scansion"),
        "torch's version": torch.__version__,
        "transformers' version": transformers.__version__,
        "the model's configuration": hashlib.blake2b(canonical, digest_size=16).hexdigest(),
        "the model's weights": source.identity(),
        "device type": device.type,
        "dtype": str(dtype).removeprefix("torch."),
        "context length": str(context_length),
        "attention backend": config.attention_backend,
        "page size": str(config.page_size),
        "KV cache tokens": str(config.kv_cache_tokens),
        "most tokens of a batch": str(config.max_batch_tokens),
    }

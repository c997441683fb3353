"""How many KV pages there are."""

from __future__ import annotations

import torch

from model_runner.config import RunnerConfig


def count_pages(config: RunnerConfig, *, page_bytes: int, context_length: int, device: torch.device) -> int:
    return (config.kv_cache_tokens or 16384) // config.page_size

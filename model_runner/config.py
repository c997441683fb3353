"""Configuration of the model runner."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
AttentionBackendName = Literal["auto", "torch"]
DtypeName = Literal["auto", "bfloat16", "float16", "float32"]


@dataclass(frozen=True, kw_only=True)
class RunnerConfig:
    model_path: Path
    """A ``.gguf`` file, or a folder with ``config.json`` (and safetensors, unless ``load_format`` is dummy)."""
    load_format: LoadFormat = "auto"
    dtype: DtypeName = "auto"
    """``auto``: bfloat16, and float32 on a GPU that does not compute bfloat16."""
    device: str = "auto"
    """``cpu``, ``cuda``, ``cuda:N``; ``auto``: CUDA when there is one."""
    attention_backend: str = "auto"
    page_size: int = 16
    """Tokens in a KV page."""
    kv_cache_tokens: int | None = None
    """Capacity of the KV pool; ``None``: sized from the memory that is free after loading."""
    memory_fraction: float = 0.85
    """Share of free memory that KV may take when it is sized from what is free."""
    context_length: int | None = None
    """``None``: the model's own."""
    num_threads: int | None = None
    """CPU compute threads; ``None``: chosen from the cores that are there."""
    max_batch_tokens: int = 512
    """Most tokens of one forward pass."""
    seed: int = 0
    """Of the dummy loader's random weights."""


@dataclass(frozen=True, kw_only=True)
class RankConfig:
    """One rank's place in its tensor-parallel group."""

    rank: int
    """0-based; rank 0 samples, and talks to the HTTP processes."""
    size: int
    """Ranks of the group."""
    local_rank: int
    """Number of this rank among those of its machine: which CUDA device it takes."""
    host: str
    """Address at which rank 0's machine is reached."""
    port: int
    """Where the ranks meet."""
    listener: socket.socket | None = None
    """Rank 0: a listening socket on ``port``. ``None``: somebody else serves the store there (``torchrun``)."""
    prefix: str = ""
    """Before every key of a store that is not the group's own."""
    timeout: float = 60.0
    """Seconds a collective may take before the group counts as broken."""
    start_timeout: float = 600.0
    """Seconds the ranks wait for each other while they start and load."""
    checks_plans: bool = False
    """Compare a hash of each step's plan between ranks."""

"""How many KV pages there are."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from model_runner.config import RunnerConfig
from model_runner.errors import ModelLoadError

MAX_CPU_BYTES = 2 << 30
MAX_CPU_SHARE = 0.25
"""Most memory of the pool on a CPU, in bytes and as a share of what is free at the start. Pages are resident once they
were used, and the rest of the machine needs memory too."""
MAX_CPU_TEXTS = 16
"""On a CPU the pool is never sized beyond this many texts of full context length. Memory there is shared with the page
cache and every other process, and a CPU computes more rows than this too slowly for their context to matter."""


def count_pages(
    config: RunnerConfig,
    *,
    page_bytes: int,
    context_length: int,
    device: torch.device,
    free_bytes: int | None = None,
) -> int:
    """
    Pages of the KV pool.

    Parameters
    ----------
    config : RunnerConfig
        ``kv_cache_tokens`` wins where it is given; else ``memory_fraction`` of what is free is used, on a CPU at most
        ``MAX_CPU_SHARE`` of it and ``MAX_CPU_BYTES``.
    page_bytes : int
        Bytes of one page over all layers.
    context_length : int
        Tokens of the longest text.
    device : torch.device
        Where the pages are.
    free_bytes : int, optional
        What is free there; measured unless given.

    Raises
    ------
    ModelLoadError
        If not even one page fits, or what was asked for is more than is free.
    """
    page_size = config.page_size
    if page_size < 1:
        raise ModelLoadError(f"the page size is {page_size}; it must be at least 1")
    free = free_memory(device) if free_bytes is None else free_bytes
    if config.kv_cache_tokens is not None:
        num_pages = config.kv_cache_tokens // page_size
        if num_pages < 1:
            raise ModelLoadError(f"{config.kv_cache_tokens} KV cache tokens are less than one page of {page_size}")
        if (num_pages + 1) * page_bytes > free:
            raise ModelLoadError(
                f"{config.kv_cache_tokens} KV cache tokens take {_mebibytes(num_pages * page_bytes)} MiB, "
                f"but {_mebibytes(free)} MiB are free; ask for fewer with --kv-cache-tokens"
            )
        return num_pages
    # One page more than is counted exists, for padding.
    budget = int(free * config.memory_fraction)
    if device.type == "cpu":
        budget = min(budget, int(free * MAX_CPU_SHARE), MAX_CPU_BYTES)
    num_pages = budget // page_bytes - 1
    if device.type == "cpu":
        num_pages = min(num_pages, MAX_CPU_TEXTS * -(-context_length // page_size))
    if num_pages < 1:
        raise ModelLoadError(
            f"no memory is left for the KV cache: {_mebibytes(free)} MiB are free, and one page of {page_size} tokens "
            f"takes {_mebibytes(page_bytes)} MiB"
        )
    return num_pages


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken on a device; on the CPU within the control group's limit."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    available = int(psutil.virtual_memory().available)
    limit = _control_group_room()
    return available if limit is None else min(available, limit)


def _control_group_room() -> int | None:
    """Bytes below the control group's memory limit, version 2 or 1; ``None`` where there is no limit."""
    for folder, limit_name, usage_name in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            limit = Path(folder, limit_name).read_text().strip()
            usage = int(Path(folder, usage_name).read_text())
            statistics = Path(folder, "memory.stat").read_text().split()
        except (OSError, ValueError):
            continue
        if limit == "max" or int(limit) >= 1 << 60:
            return None
        # Pages of files that nobody is using count as used, and are given up on demand.
        inactive = dict(zip(statistics[::2], statistics[1::2], strict=False)).get("inactive_file", "0")
        return max(0, int(limit) - usage + int(inactive))
    return None


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f}"

"""The KV pool's size, and the threads of a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from model_runner.attention.base import AttentionLayer
from model_runner.attention.paged_cache import PagedCache
from model_runner.config import RunnerConfig
from model_runner.errors import ModelLoadError
from model_runner.sizing import MAX_CPU_TEXTS, count_pages, free_memory
from model_runner.threads import choose_num_threads, configure_thread_environment

CPU = torch.device("cpu")
GIB = 2**30


def config(**settings: object) -> RunnerConfig:
    return RunnerConfig(model_path=Path("."), **settings)  # type: ignore[arg-type]


def pages(*, page_bytes: int = 2**20, context_length: int = 10**6, free: int = GIB, **settings: object) -> int:
    return count_pages(
        config(**settings), page_bytes=page_bytes, context_length=context_length, device=CPU, free_bytes=free
    )


def test_the_pool_takes_its_fraction_of_what_is_free() -> None:
    assert pages(memory_fraction=0.125) == 127  # 128 with the page for padding


def test_on_a_cpu_the_pool_takes_a_quarter_of_what_is_free_and_two_gib_at_most() -> None:
    assert pages() == 255
    assert pages(free=4 * GIB) == 1023
    assert pages(free=64 * GIB) == 2047


def test_on_a_cpu_the_pool_is_no_larger_than_texts_could_ever_use() -> None:
    assert pages(context_length=100) == MAX_CPU_TEXTS * 7


def test_an_explicit_capacity_wins() -> None:
    assert pages(kv_cache_tokens=100) == 6


@pytest.mark.parametrize(
    "settings", [{"kv_cache_tokens": 15}, {"free": 2**20}, {"kv_cache_tokens": 10**6}, {"page_size": 0}]
)
def test_a_pool_that_cannot_be_is_an_error(settings: dict[str, int]) -> None:
    with pytest.raises(ModelLoadError):
        pages(**settings)  # type: ignore[arg-type]


def test_free_memory_is_a_positive_number_of_bytes() -> None:
    assert free_memory(CPU) > 2**20


def test_threads_are_chosen_from_the_cores_there_are() -> None:
    assert choose_num_threads(3) == 3
    assert choose_num_threads(None) >= 1
    with pytest.raises(ValueError, match="at least 1"):
        choose_num_threads(0)


def test_the_environment_makes_threads_wait_passively_unless_told_otherwise() -> None:
    environment = {"OMP_NUM_THREADS": "5"}
    assert configure_thread_environment(None, environment) == 5
    assert environment["OMP_WAIT_POLICY"] == "passive"
    chosen = {"OMP_WAIT_POLICY": "active"}
    assert configure_thread_environment(2, chosen) == 2
    assert (chosen["OMP_NUM_THREADS"], chosen["OMP_WAIT_POLICY"]) == ("2", "active")


def test_choosing_threads_imports_no_torch() -> None:
    program = "import sys, model_runner.threads, model_runner.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2]).returncode == 0


def test_a_pool_takes_memory_only_where_it_is_written() -> None:
    layers = [AttentionLayer(num_heads=1, num_kv_heads=1, head_dim=64, value_dim=64, scale=1.0) for _ in range(2)]
    before = psutil.Process().memory_info().rss
    cache = PagedCache(layers, num_pages=2**14, page_size=16, dtype=torch.float32, device=CPU)
    taken = psutil.Process().memory_info().rss - before
    assert sum(pages.nbytes for pages in cache.pages) > 2**28
    assert taken < 2**24
    assert not cache.pages[0][cache.zero_page].any()

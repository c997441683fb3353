"""Checkpoints made once, and a driver that plays the scheduler's part for one text at a time."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from model_runner.config import RunnerConfig
from model_runner.forward_row import ForwardRow
from model_runner.runner import ModelRunner

sys.path.insert(0, str(Path(__file__).parent))

from checkpoints import write_checkpoint


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``make_checkpoint("llama", attention_bias=True)``: a folder with random weights, made once per call."""
    made: dict[str, Path] = {}

    def make(model_type: str, *, max_shard_size: str = "1GB", **overrides: Any) -> Path:
        key = repr((model_type, max_shard_size, sorted(overrides.items(), key=lambda item: item[0])))
        if key not in made:
            folder = tmp_path_factory.mktemp(model_type)
            write_checkpoint(folder, model_type, max_shard_size=max_shard_size, **overrides)
            made[key] = folder
        return made[key]

    return make


@pytest.fixture(scope="session")
def load_runner() -> Callable[..., ModelRunner]:
    """A float32 runner on the CPU with 64 pages of 16 tokens, unless told otherwise."""

    def load(path: Path, **overrides: Any) -> ModelRunner:
        settings: dict[str, Any] = {"dtype": "float32", "device": "cpu", "kv_cache_tokens": 1024, **overrides}
        return ModelRunner(RunnerConfig(model_path=path, **settings))

    return load


@pytest.fixture(scope="session")
def reference_logits() -> Callable[[Path, Sequence[int]], torch.Tensor]:
    """[T, V] logits of transformers' own code, eager attention, float32."""
    models: dict[Path, Any] = {}

    def logits(path: Path, token_ids: Sequence[int]) -> torch.Tensor:
        if path not in models:
            config = AutoConfig.from_pretrained(path)
            config._experts_implementation = "eager"
            model = AutoModelForCausalLM.from_pretrained(
                path, config=config, dtype=torch.float32, attn_implementation="eager"
            )
            models[path] = model.eval()
        with torch.no_grad():
            result: torch.Tensor = models[path](torch.tensor([list(token_ids)]), use_cache=False).logits[0]
        return result

    return logits


@pytest.fixture(scope="session")
def make_row() -> Callable[..., ForwardRow]:
    """Positions ``start`` to ``stop`` of a text, with logits for all of them unless told otherwise."""

    def make(
        token_ids: Sequence[int],
        pages: Sequence[int],
        *,
        start: int = 0,
        stop: int | None = None,
        num_logits: int | None = None,
    ) -> ForwardRow:
        chunk = list(token_ids[start:stop])
        return ForwardRow(chunk, start, list(pages), len(chunk) if num_logits is None else num_logits)

    return make


@pytest.fixture(scope="session")
def run_in_chunks(make_row: Callable[..., ForwardRow]) -> Callable[..., torch.Tensor]:
    """[T, V] logits of a text computed alone, in chunks that end at ``cuts`` and at its end."""

    def run(
        runner: ModelRunner, token_ids: Sequence[int], pages: Sequence[int], cuts: Sequence[int] = ()
    ) -> torch.Tensor:
        bounds = itertools.pairwise([0, *cuts, len(token_ids)])
        return torch.cat([runner.forward([make_row(token_ids, pages, start=a, stop=b)]) for a, b in bounds])

    return run

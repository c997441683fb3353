"""What runs on each rank in the tests of a cut model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from model_runner.config import RankConfig, RunnerConfig
from model_runner.errors import ModelLoadError
from model_runner.forward_row import ForwardRow
from model_runner.ranks import Ranks
from model_runner.runner import ModelRunner


def load(path: Path, ranks: Ranks | None = None, **overrides: Any) -> ModelRunner:
    """A float32 runner on the CPU with 64 pages of 16 tokens, unless told otherwise."""
    settings: dict[str, Any] = {"dtype": "float32", "device": "cpu", "kv_cache_tokens": 1024, **overrides}
    return ModelRunner(RunnerConfig(model_path=path, **settings), ranks=ranks)


def meet(config: RankConfig) -> Ranks:
    return Ranks(config, torch.device("cpu"))


def compute(
    config: RankConfig, path: Path, passes: Sequence[Sequence[ForwardRow]], settings: dict[str, Any]
) -> list[torch.Tensor]:
    """The logits of each pass."""
    runner = load(path, meet(config), **settings)
    return [runner.forward(rows) for rows in passes]


def count_parameters(config: RankConfig, path: Path) -> int:
    """How many this rank holds."""
    return load(path, meet(config)).num_parameters


def try_to_load(config: RankConfig, paths: Sequence[Path], settings: Sequence[dict[str, Any]]) -> str:
    """What the error of loading says, each rank with its own path and settings."""
    ranks = meet(config)
    try:
        load(paths[config.rank], ranks, **settings[config.rank])
    except ModelLoadError as error:
        return str(error)
    return ""


def answer_greedily(
    runner: ModelRunner, prompts: Sequence[Sequence[int]], count: int, ranks: Ranks | None = None
) -> list[list[int]]:
    """The most probable ``count`` tokens behind each prompt, all prompts in one batch."""
    tables = [range(4 * index, 4 * index + 4) for index in range(len(prompts))]
    rows = [ForwardRow(prompt, 0, table, 1) for prompt, table in zip(prompts, tables, strict=True)]
    answers: list[list[int]] = [[] for _ in prompts]
    for _ in range(count):
        logits = runner.forward(rows)
        if ranks is None or ranks.rank == 0:
            token_ids = logits.argmax(-1)
        else:
            token_ids = torch.empty(len(prompts), dtype=torch.int64)
        if ranks is not None:
            ranks.broadcast_(token_ids)
        for answer, token_id in zip(answers, token_ids.tolist(), strict=True):
            answer.append(token_id)
        rows = [
            ForwardRow([answer[-1]], len(prompt) + len(answer) - 1, table, 1)
            for prompt, answer, table in zip(prompts, answers, tables, strict=True)
        ]
    return answers


def answer_greedily_on_ranks(
    config: RankConfig, path: Path, prompts: Sequence[Sequence[int]], count: int
) -> list[list[int]]:
    """:func:`answer_greedily` with a cut model."""
    ranks = meet(config)
    return answer_greedily(load(path, ranks, kv_cache_tokens=4096), prompts, count, ranks)

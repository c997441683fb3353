"""What runs on each rank in ``test_collectives.py``."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model_runner.config import RankConfig
from model_runner.errors import ModelLoadError, RankError
from model_runner.ranks import Ranks


def meet(config: RankConfig) -> Ranks:
    return Ranks(config, torch.device("cpu"))


def use_each(config: RankConfig) -> dict[str, Any]:
    ranks = meet(config)
    own = torch.arange(6, dtype=torch.float32).view(2, 3) + 10 * config.rank
    message = bytes(range(256)) * 100
    columns = ranks.gather_columns(own)
    return {
        "sum": ranks.sum_(own.clone(), is_exact=False).tolist(),
        "exact sum": ranks.sum_(own.clone(), is_exact=True).tolist(),
        "columns": None if columns is None else columns.tolist(),
        "broadcast": ranks.broadcast_(torch.tensor([config.rank, 7])).tolist(),
        "short": ranks.broadcast_bytes(b"short" if config.rank == 0 else b""),
        "long is whole": ranks.broadcast_bytes(message if config.rank == 0 else b"") == message,
        "gathered": [int(part) for part in ranks.all_gather(torch.tensor([config.rank]))],
        "smallest": ranks.smallest(5 - config.rank),
    }


def exact_sums(config: RankConfig, parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The sum of whole tensors, and that of their rows one by one."""
    ranks = meet(config)
    own = parts[config.rank]
    whole = ranks.sum_(own.clone(), is_exact=True)
    rows = [ranks.sum_(row.clone(), is_exact=True) for row in own]
    return whole, torch.stack(rows)


def state_facts(config: RankConfig, facts: list[dict[str, str]]) -> str:
    ranks = meet(config)
    try:
        ranks.compare(facts[config.rank])
    except ModelLoadError as error:
        return str(error)
    finally:
        ranks.wait_for_all("the facts")
    return ""


class _LateStore:
    """A store to which a rank comes late with what it waits for."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def wait(self, *args: Any) -> None:
        time.sleep(0.5)
        self._store.wait(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def state_facts_late(config: RankConfig, facts: list[dict[str, str]]) -> str:
    """As :func:`state_facts`, with ranks that leave at once, and the one that serves the store far ahead."""
    ranks = meet(config)
    if config.rank:
        ranks._store = _LateStore(ranks._store)  # type: ignore[assignment]
    try:
        ranks.compare(facts[config.rank])
    except ModelLoadError as error:
        return str(error)
    finally:
        ranks.close()
    return ""


def sum_forever(config: RankConfig, has_begun: Path) -> str:
    ranks = meet(config)
    ranks.sum_(torch.ones(4), is_exact=False)
    has_begun.touch()
    try:
        while True:
            ranks.sum_(torch.ones(4), is_exact=False)
            time.sleep(0.01)
    except RankError:
        return "noticed"


def meet_as(config: RankConfig, places: list[tuple[int, int]]) -> str:
    """Why ranks that take other places than the harness gave them do not meet."""
    rank, size = places[config.rank]
    try:
        meet(replace(config, rank=rank, size=size, start_timeout=5.0))
    except ModelLoadError as error:
        return str(error)
    return ""

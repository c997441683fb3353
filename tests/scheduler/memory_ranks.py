"""Ranks as threads of this process: the collectives of ``model_runner.ranks.Ranks`` over shared memory."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from model_runner.errors import RankError

TIMEOUT = 20.0


class MemoryGroup:
    """Every collective is one exchange: everyone puts something in, and everyone sees what all put in."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=TIMEOUT)
        self.slots: list[Any] = [None] * size
        self.ranks = [MemoryRanks(self, rank) for rank in range(size)]

    def run(self, function: Callable[[MemoryRanks], Any]) -> list[Any]:
        """What the function returns for each rank, each in a thread. A rank that raises is missed by the others."""

        def guarded(ranks: MemoryRanks) -> Any:
            try:
                return function(ranks)
            except BaseException:
                self.barrier.abort()
                raise

        with ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(guarded, ranks) for ranks in self.ranks]
        errors = [error for error in (future.exception() for future in futures) if error is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, LostRankError)):
            raise error  # the cause, not who missed it
        return [future.result() for future in futures]


class LostRankError(RankError):
    pass


class MemoryRanks:
    """One rank's end. ``calls`` counts its collectives by name."""

    def __init__(self, group: MemoryGroup, rank: int) -> None:
        self.rank = rank
        self.size = group.size
        self.calls: Counter[str] = Counter()
        self._group = group

    def broadcast_bytes(self, message: bytes = b"") -> bytes:
        return self._exchange("broadcast_bytes", message)[0]

    def broadcast_(self, tensor: torch.Tensor) -> torch.Tensor:
        everyone = self._exchange("broadcast_", tensor.clone())
        assert everyone[0].shape == tensor.shape
        assert everyone[0].dtype == tensor.dtype
        return tensor.copy_(everyone[0])

    def all_gather(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        everyone = self._exchange("all_gather", tensor.clone())
        assert {(part.shape, part.dtype) for part in everyone} == {(tensor.shape, tensor.dtype)}
        return everyone

    def _exchange(self, name: str, mine: Any) -> list[Any]:
        self.calls[name] += 1
        group = self._group
        try:
            group.slots[self.rank] = name, mine
            group.barrier.wait()
            names, everyone = zip(*group.slots, strict=True)
            group.barrier.wait()
        except threading.BrokenBarrierError:
            raise LostRankError("a rank is gone or did not come in time") from None
        assert len(set(names)) == 1, f"the ranks are in different collectives: {names}"
        return list(everyone)

"""Parallel layers: the sum after a row-parallel product, and a vocabulary split by token id."""

from __future__ import annotations

from collections.abc import Callable

import torch

from model_runner.layers.linear import Linear
from model_runner.ranks import Ranks


class SummedOverRanks:
    """A layer of which every rank computes an addend [T, N]: this rank's heads, or its part of the inner width."""

    def __init__(self, addend: Callable[[torch.Tensor], torch.Tensor], ranks: Ranks, *, is_exact: bool) -> None:
        self._addend = addend
        self._ranks = ranks
        self._is_exact = is_exact

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._ranks.sum_(self._addend(x), is_exact=self._is_exact)


class Embedding:
    """Rows of a table [V, hidden]."""

    def __init__(self, table: torch.Tensor) -> None:
        self._table = table

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._table.index_select(0, token_ids)


class VocabularyParallelEmbedding:
    """Rows of a table of which this rank has those of the ids from ``first`` on, [V / size, hidden]."""

    def __init__(self, table: torch.Tensor, first: int, ranks: Ranks) -> None:
        self._table = table
        self._first = first
        self._ranks = ranks

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        own = token_ids - self._first
        is_elsewhere = (own < 0) | (own >= self._table.shape[0])
        rows = self._table.index_select(0, own.masked_fill_(is_elsewhere, 0)).masked_fill_(is_elsewhere.unsqueeze(1), 0)
        # One addend of a row is not zero, so the order of adding is no matter.
        return self._ranks.sum_(rows, is_exact=False)


class GatheredOverRanks:
    """A product of which every rank computes some outputs and needs them all, [T, N]."""

    def __init__(self, product: Linear, num_outputs: int, ranks: Ranks) -> None:
        self._product = product
        self._num_outputs = num_outputs
        self._ranks = ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._ranks.all_gather_columns(self._product(x))[:, : self._num_outputs]


class VocabularyParallelHead:
    """Logits of which every rank computes those of its ids: whole [S, V] on rank 0, [S, 0] on the others."""

    def __init__(self, product: Linear, vocab_size: int, ranks: Ranks) -> None:
        self._product = product
        self._vocab_size = vocab_size
        self._ranks = ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        logits = self._ranks.gather_columns(self._product(x))
        if logits is None:
            return x.new_empty((x.shape[0], 0))
        return logits[:, : self._vocab_size].contiguous()

"""The ``torch`` backend at float32: a row's bits depend on nothing but the row.

Queries are cut into tiles of :data:`QUERY_TILE` consecutive positions of one row, keys into blocks at fixed positions
of the text, and the softmax runs online from block to block. Every product has one shape, and a masked position, a
padded query and a block past the end contribute exactly nothing (a factor ``exp(0) = 1``, an addend 0). So a query's
result is the same operations on the same numbers in whatever chunk, batch or tile it is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from model_runner.attention.base import AttentionBackend, AttentionFeature, AttentionLayer
from model_runner.attention.paged_cache import PagedCache, token_width
from model_runner.batch import RaggedBatch

QUERY_TILE = 8
KEY_BLOCK = 128
"""Least positions of a key block, which is a whole number of pages."""
LOWEST = -1e30
"""The running maximum before any key: finite, so that a block without a visible key changes nothing."""


@dataclass(frozen=True, eq=False)
class _Block:
    """The j-th key block of the tiles that have one; they come first."""

    num_tiles: int
    pages: torch.Tensor
    """[N, pages per block]."""
    hidden: torch.Tensor
    """[N, 1, Q, 1, L] bool: what each query may not see."""


@dataclass(frozen=True, eq=False)
class _Plan:
    num_tokens: int
    slots: torch.Tensor
    begun_pages: torch.Tensor
    tile_tokens: torch.Tensor
    """[N * Q]: the token in each place of each tile, 0 where there is none."""
    token_places: torch.Tensor
    """[T + padding]: where each token is among the tiles' places."""
    blocks: dict[int | None, tuple[_Block, ...]]
    """By sliding window."""


class BlockwiseAttention(AttentionBackend):
    name: ClassVar[str] = "torch"
    features: ClassVar[frozenset[AttentionFeature]] = frozenset(("sliding_window", "softcap", "sinks", "value_width"))

    def __init__(
        self, layers: Sequence[AttentionLayer], *, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(layers, page_size=page_size, dtype=dtype, device=device)
        self._windows = sorted({layer.sliding_window for layer in layers}, key=lambda window: window or 0)
        self._pages_per_block = -(-KEY_BLOCK // page_size)
        self._block = self._pages_per_block * page_size

    @classmethod
    def missing(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        return None

    def page_bytes(self) -> int:
        return self.page_size * self.dtype.itemsize * sum(token_width(layer) for layer in self.layers)

    def allocate(self, num_pages: int) -> None:
        self._cache = PagedCache(
            self.layers, num_pages=num_pages, page_size=self.page_size, dtype=self.dtype, device=self.device
        )

    def plan(self, batch: RaggedBatch) -> _Plan:
        # One tile: (row, first position, queries, first token). The longest context first, so that the tiles that
        # still have a j-th block are always the first ones.
        tiles = []
        for index, (row, first_token) in enumerate(zip(batch.rows, batch.token_starts, strict=True)):
            for offset in range(0, len(row.token_ids), QUERY_TILE):
                count = min(QUERY_TILE, len(row.token_ids) - offset)
                tiles.append((index, row.start + offset, count, first_token + offset))
        tiles.sort(key=lambda tile: -tile[1])
        tile_tokens = np.zeros((max(2, len(tiles)), QUERY_TILE), dtype=np.int64)
        token_places = np.zeros(len(batch.token_ids), dtype=np.int64)
        for place, (_, _, count, first_token) in enumerate(tiles):
            tile_tokens[place, :count] = np.arange(first_token, first_token + count)
            token_places[first_token : first_token + count] = place * QUERY_TILE + np.arange(count)
        return _Plan(
            num_tokens=batch.num_tokens,
            slots=batch.slots,
            begun_pages=batch.begun_pages,
            tile_tokens=torch.from_numpy(tile_tokens.reshape(-1)).to(self.device),
            token_places=torch.from_numpy(token_places).to(self.device),
            blocks={window: self._blocks(batch, tiles, window) for window in self._windows},
        )

    def attend(
        self, layer_index: int, plan: _Plan, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        layer = self.layers[layer_index]
        num_groups = layer.num_heads // layer.num_kv_heads
        self._cache.write(layer_index, plan.slots, plan.begun_pages, key[: plan.num_tokens], value[: plan.num_tokens])

        tiled = query.index_select(0, plan.tile_tokens).view(
            -1, QUERY_TILE, layer.num_kv_heads, num_groups, layer.head_dim
        )
        queries = tiled.permute(0, 2, 1, 3, 4).flatten(2, 3).contiguous()  # [N, Hkv, Q * G, D]
        state = _OnlineSoftmax(queries, layer)
        for block in plan.blocks[layer.sliding_window]:
            keys, values = self._cache.gather(layer_index, layer, block.pages)
            state.add(block.num_tiles, keys, values, block.hidden)
        out = torch.unflatten(state.finish(), 2, (QUERY_TILE, num_groups)).permute(0, 2, 1, 3, 4)  # [N, Q, Hkv, G, Dv]
        return out.reshape(-1, layer.num_heads * layer.value_dim).index_select(0, plan.token_places)

    def _blocks(
        self, batch: RaggedBatch, tiles: Sequence[tuple[int, int, int, int]], window: int | None
    ) -> tuple[_Block, ...]:
        first_blocks = [0 if window is None else max(0, start + 1 - window) // self._block for _, start, _, _ in tiles]
        num_blocks = [
            (start + count - 1) // self._block + 1 - first
            for (_, start, count, _), first in zip(tiles, first_blocks, strict=True)
        ]
        blocks = []
        for j in range(max(num_blocks)):
            active = max(place + 1 for place, count in enumerate(num_blocks) if count > j)
            # A batched product of a single matrix takes another path than one of several.
            num_tiles = max(2, active)
            pages = np.full((num_tiles, self._pages_per_block), self._cache.zero_page, dtype=np.int64)
            hidden = np.ones((num_tiles, QUERY_TILE, self._block), dtype=np.bool_)
            for place in range(active):
                row_index, start, count, _ = tiles[place]
                block = first_blocks[place] + j
                table = batch.rows[row_index].block_table
                held = table[block * self._pages_per_block : (block + 1) * self._pages_per_block]
                last = (start + count - 1) // self.page_size - block * self._pages_per_block + 1
                if last <= 0:
                    continue
                held = held[:last]
                pages[place, : len(held)] = held
                key_positions = np.arange(block * self._block, (block + 1) * self._block)[None, :]
                query_positions = np.arange(start, start + QUERY_TILE)[:, None]
                hidden[place] = key_positions > query_positions
                if window is not None:
                    hidden[place] |= key_positions <= query_positions - window
            blocks.append(
                _Block(
                    num_tiles=num_tiles,
                    pages=torch.from_numpy(pages).to(self.device),
                    hidden=torch.from_numpy(hidden).to(self.device)[:, None, :, None, :],
                )
            )
        return tuple(blocks)


class _OnlineSoftmax:
    """Running maximum, sum and weighted values of every query (Milakov and Gimelshein, 2018)."""

    def __init__(self, queries: torch.Tensor, layer: AttentionLayer) -> None:
        num_tiles, num_kv_heads, num_rows, _ = queries.shape
        self._queries = queries
        self._layer = layer
        self._num_groups = num_rows // QUERY_TILE
        self._maximum = queries.new_full((num_tiles, num_kv_heads, num_rows, 1), LOWEST)
        self._total = queries.new_zeros((num_tiles, num_kv_heads, num_rows, 1))
        self._values = queries.new_zeros((num_tiles, num_kv_heads, num_rows, layer.value_dim))

    def add(self, num_tiles: int, keys: torch.Tensor, values: torch.Tensor, hidden: torch.Tensor) -> None:
        """One block of keys [N, L, Hkv, D] and values for the first N tiles."""
        queries = self._queries[:num_tiles]
        scores = _products(queries, keys.permute(0, 2, 3, 1)).mul_(self._layer.scale)
        if self._layer.softcap is not None:
            scores = scores.div_(self._layer.softcap)
            scores = _tanh(scores).mul_(self._layer.softcap)
        torch.unflatten(scores, 2, (QUERY_TILE, self._num_groups)).masked_fill_(hidden, float("-inf"))
        maximum, total, weighted = self._maximum[:num_tiles], self._total[:num_tiles], self._values[:num_tiles]
        new_maximum = torch.maximum(maximum, scores.amax(dim=-1, keepdim=True))
        weights = scores.sub_(new_maximum).exp_()
        correction = torch.exp(maximum - new_maximum)
        total.mul_(correction).add_(weights.sum(dim=-1, keepdim=True))
        weighted.mul_(correction).add_(_products(weights, values.transpose(1, 2)))
        maximum.copy_(new_maximum)

    def finish(self) -> torch.Tensor:
        """[N, Hkv, Q * G, Dv]."""
        total = self._total
        if self._layer.sinks is not None:
            # [H] is [Hkv, G]; the sink is one more key, without a value.
            sinks = self._layer.sinks.to(total.dtype).view(1, -1, 1, self._num_groups)
            sinks = sinks.expand(-1, -1, QUERY_TILE, -1).reshape(1, sinks.shape[1], -1, 1)
            total = total + torch.exp(sinks - self._maximum)
        # A padded query that sees no key has nothing to divide; nobody reads it.
        return self._values / total.clamp_min_(torch.finfo(total.dtype).tiny)


def _products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """[N, Hkv, M, K] by [N, Hkv, K, L], as N * Hkv products of one shape."""
    shape = (*left.shape[:3], right.shape[3])
    return torch.bmm(left.flatten(0, 1), right.contiguous().flatten(0, 1)).view(shape)


def _tanh(x: torch.Tensor) -> torch.Tensor:
    """Made of operations whose result does not depend on an element's place, as the fused kernel's may."""
    doubled = torch.exp(x.abs().mul_(-2.0))
    return (1.0 - doubled).div_(1.0 + doubled).copysign_(x)

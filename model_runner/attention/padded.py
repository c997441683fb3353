"""The ``torch`` backend at bfloat16 and float16: padded KV and scaled_dot_product_attention.

Rows of one query length and of like context lengths are one call; what may be attended is decided once per pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch.nn import functional

from model_runner.attention.base import AttentionBackend, AttentionFeature, AttentionLayer
from model_runner.attention.paged_cache import PagedCache, token_width
from model_runner.batch import RaggedBatch
from model_runner.forward_row import ForwardRow

MAX_GROUPED_QUERIES = 16
"""Rows with more new tokens than this are attended one by one: their work outweighs a call."""
SMALLEST_BUCKET = 256
"""Rows whose contexts are at most this long share a call; above, lengths within a factor of two do."""


@dataclass(frozen=True, eq=False)
class _View:
    """What a group's queries see through one sliding window (or none)."""

    pages: torch.Tensor | None
    """[B, N] page table; ``None``: keys and values are the batch's own, nothing lies before them."""
    mask: torch.Tensor | None
    """[B, 1, Q, L] additive, in the compute type; ``None``: see ``is_causal``."""
    length: int
    """L: positions of the gathered pages that may be seen at all."""
    is_causal: bool = False


@dataclass(frozen=True, eq=False)
class _Group:
    tokens: slice
    num_rows: int
    num_queries: int
    views: dict[int | None, _View]
    """By sliding window."""


@dataclass(frozen=True, eq=False)
class _Plan:
    slots: torch.Tensor
    begun_pages: torch.Tensor
    groups: tuple[_Group, ...]


class PaddedAttention(AttentionBackend):
    name: ClassVar[str] = "torch"
    features: ClassVar[frozenset[AttentionFeature]] = frozenset(("sliding_window", "softcap", "sinks", "value_width"))

    def __init__(
        self, layers: Sequence[AttentionLayer], *, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(layers, page_size=page_size, dtype=dtype, device=device)
        self._windows = sorted({layer.sliding_window for layer in layers}, key=lambda window: window or 0)

    @classmethod
    def missing(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        return None

    def page_bytes(self) -> int:
        return self.page_size * self.dtype.itemsize * sum(token_width(layer) for layer in self.layers)

    def allocate(self, num_pages: int) -> None:
        self._cache = PagedCache(
            self.layers, num_pages=num_pages, page_size=self.page_size, dtype=self.dtype, device=self.device
        )

    def arrange(self, rows: Sequence[ForwardRow]) -> Sequence[int]:
        return sorted(range(len(rows)), key=lambda index: (_group_key(rows[index]), index))

    def plan(self, batch: RaggedBatch) -> _Plan:
        groups, begin = [], 0
        while begin < len(batch.rows):
            key = _group_key(batch.rows[begin])
            end = begin + 1
            if key[0] <= MAX_GROUPED_QUERIES:
                while end < len(batch.rows) and _group_key(batch.rows[end]) == key:
                    end += 1
            rows = batch.rows[begin:end]
            first = batch.token_starts[begin]
            groups.append(
                _Group(
                    tokens=slice(first, first + key[0] * len(rows)),
                    num_rows=len(rows),
                    num_queries=key[0],
                    views={window: self._view(rows, window) for window in self._windows},
                )
            )
            begin = end
        return _Plan(slots=batch.slots, begun_pages=batch.begun_pages, groups=tuple(groups))

    def attend(
        self, layer_index: int, plan: _Plan, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        layer = self.layers[layer_index]
        self._cache.write(layer_index, plan.slots, plan.begun_pages, key, value)
        parts = []
        for group in plan.groups:
            view = group.views[layer.sliding_window]
            if view.pages is None:
                keys, values = key[group.tokens].unsqueeze(0), value[group.tokens].unsqueeze(0)
            else:
                keys, values = self._cache.gather(layer_index, layer, view.pages)
                keys, values = keys[:, : view.length], values[:, : view.length]
            parts.append(_attend_group(layer, group, view, query[group.tokens], keys, values))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _view(self, rows: Sequence[ForwardRow], window: int | None) -> _View:
        num_queries = len(rows[0].token_ids)
        lengths = [row.start + num_queries for row in rows]
        if len(rows) == 1 and rows[0].start == 0 and (window is None or window >= num_queries):
            return _View(pages=None, mask=None, length=num_queries, is_causal=num_queries > 1)
        # A window lets whole pages at the front go unread.
        firsts = [0 if window is None else max(0, row.start + 1 - window) // self.page_size for row in rows]
        columns = max(-(-length // self.page_size) - first for length, first in zip(lengths, firsts, strict=True))
        table = np.full((len(rows), columns), self._cache.zero_page, dtype=np.int64)
        for index, (row, length, first) in enumerate(zip(rows, lengths, firsts, strict=True)):
            pages = row.block_table[first : -(-length // self.page_size)]
            table[index, : len(pages)] = pages
        offsets = np.asarray(firsts, dtype=np.int64)[:, None] * self.page_size
        seen = max(length - first * self.page_size for length, first in zip(lengths, firsts, strict=True))
        mask = self._mask(rows, offsets, seen, window)
        return _View(pages=torch.from_numpy(table).to(self.device), mask=mask, length=seen)

    def _mask(
        self,
        rows: Sequence[ForwardRow],
        offsets: np.ndarray[tuple[int, int], np.dtype[np.int64]],
        seen: int,
        window: int | None,
    ) -> torch.Tensor | None:
        key_positions = (offsets + np.arange(seen))[:, None, :]
        starts = np.asarray([row.start for row in rows], dtype=np.int64)[:, None]
        query_positions = (starts + np.arange(len(rows[0].token_ids)))[:, :, None]
        allowed = key_positions <= query_positions
        if window is not None:
            allowed &= key_positions > query_positions - window
        if allowed.all():
            return None
        additive = torch.zeros(allowed.shape, dtype=self.dtype).masked_fill_(torch.from_numpy(~allowed), float("-inf"))
        return additive.unsqueeze(1).to(self.device)


def _group_key(row: ForwardRow) -> tuple[int, int]:
    """Query length, and the bucket of the context length; rows with many queries only need the first."""
    num_queries = len(row.token_ids)
    length = row.start + num_queries
    bucket = 0 if length <= SMALLEST_BUCKET else (length - 1).bit_length()
    return num_queries, bucket if num_queries <= MAX_GROUPED_QUERIES else 0


def _attend_group(
    layer: AttentionLayer,
    group: _Group,
    view: _View,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> torch.Tensor:
    """query [B * Q, H, D] over keys [B, L, Hkv, D], giving [B * Q, H * Dv]."""
    num_rows, num_queries, num_groups = group.num_rows, group.num_queries, layer.num_heads // layer.num_kv_heads
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    if layer.softcap is not None or layer.sinks is not None:
        return _attend_explicitly(layer, group, view, query, keys, values)
    if num_queries == 1:
        # All heads of a group read the same keys once, as if they were queries.
        folded = query.view(num_rows, layer.num_kv_heads, num_groups, layer.head_dim)
        mask = None if view.mask is None else view.mask.expand(-1, 1, num_groups, -1)
        out = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=layer.scale)
        return out.reshape(num_rows, -1)
    queries = query.view(num_rows, num_queries, layer.num_heads, layer.head_dim).transpose(1, 2)
    out = functional.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=view.mask,
        is_causal=view.is_causal,
        scale=layer.scale,
        enable_gqa=num_groups > 1,
    )
    return out.transpose(1, 2).reshape(num_rows * num_queries, -1)


def _attend_explicitly(
    layer: AttentionLayer,
    group: _Group,
    view: _View,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> torch.Tensor:
    """The same with scores in the open, for what scaled_dot_product_attention has no argument for."""
    num_groups = layer.num_heads // layer.num_kv_heads
    num_queries = group.num_queries
    queries = query.view(group.num_rows, num_queries, layer.num_kv_heads, num_groups, layer.head_dim)
    folded = queries.permute(0, 2, 3, 1, 4).flatten(2, 3)  # [B, Hkv, G * Q, D]
    scores = torch.matmul(folded, keys.transpose(2, 3)).float().mul_(layer.scale)
    if layer.softcap is not None:
        scores = scores.div_(layer.softcap).tanh_().mul_(layer.softcap)
    scores = torch.unflatten(scores, 2, (num_groups, num_queries))
    if view.mask is not None:
        scores = scores + view.mask.unsqueeze(2)
    elif view.is_causal:
        future = torch.ones(num_queries, num_queries, dtype=torch.bool, device=scores.device).triu_(1)
        scores = scores.masked_fill_(future, float("-inf"))
    if layer.sinks is not None:
        sinks = layer.sinks.float().view(1, layer.num_kv_heads, num_groups, 1, 1)
        sinks = sinks.expand(group.num_rows, -1, -1, num_queries, -1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
    else:
        weights = scores.softmax(dim=-1)
    out = torch.unflatten(torch.matmul(weights.flatten(2, 3).to(values.dtype), values), 2, (num_groups, num_queries))
    return out.permute(0, 3, 1, 2, 4).reshape(group.num_rows * num_queries, -1)

"""A ragged batch: the rows of one forward pass laid end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from model_runner.forward_row import ForwardRow


@dataclass(frozen=True, kw_only=True, eq=False)
class RaggedBatch:
    """
    Index tensors of one forward pass, made once; T tokens, S logits rows.

    ``token_ids`` and ``positions`` may be padded after the last token, to a whole number of row tiles.
    """

    rows: tuple[ForwardRow, ...]
    """In the order their tokens are laid out."""
    token_starts: tuple[int, ...]
    """Index of each row's first token."""
    num_tokens: int
    """T, without padding."""
    token_ids: torch.Tensor
    """[T + padding] int64."""
    positions: torch.Tensor
    """[T + padding] int64."""
    slots: torch.Tensor
    """[T] int64: ``page * page_size + offset`` where each token's key and value are written."""
    begun_pages: torch.Tensor
    """[N] int64: pages whose first slot this pass writes, so that what else they hold is void."""
    logits_index: torch.Tensor
    """[S] int64: tokens whose logits are wanted, in the order of the rows as they were given."""


def build_batch(
    rows: Sequence[ForwardRow],
    order: Sequence[int],
    *,
    page_size: int,
    device: torch.device,
    row_tile: int = 1,
    previous_token_ids: torch.Tensor | None = None,
) -> RaggedBatch:
    """
    Lay rows end to end.

    Parameters
    ----------
    rows : sequence of ForwardRow
        At least one; each with at least one token.
    order : sequence of int
        A permutation of the rows: the order of their tokens in the batch.
    page_size : int
        Tokens in a KV page.
    device : torch.device
        Where the index tensors are needed.
    row_tile : int
        Pad the tokens to a multiple of this.
    previous_token_ids : torch.Tensor, optional
        [N] int64 on the device: ids that rows with a ``pending_index`` take their last token from.
    """
    arranged = tuple(rows[index] for index in order)
    lengths = np.fromiter((len(row.token_ids) for row in arranged), dtype=np.int64, count=len(arranged))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    num_tokens = int(starts[-1])

    token_ids = np.zeros(num_tokens + -num_tokens % row_tile, dtype=np.int64)
    positions = np.zeros_like(token_ids)
    slots = np.empty(num_tokens, dtype=np.int64)
    pending_targets, pending_sources = [], []
    for row, begin, end in zip(arranged, starts[:-1], starts[1:], strict=True):
        row_positions = np.arange(row.start, row.start + int(end - begin))
        token_ids[begin:end] = row.token_ids
        positions[begin:end] = row_positions
        first_page = row.start // page_size
        last_page = (row.start + int(end - begin) - 1) // page_size
        pages = np.asarray(row.block_table[first_page : last_page + 1], dtype=np.int64)
        slots[begin:end] = pages[row_positions // page_size - first_page] * page_size + row_positions % page_size
        if row.pending_index is not None:
            pending_targets.append(int(end) - 1)
            pending_sources.append(row.pending_index)

    place = {index: position for position, index in enumerate(order)}
    logits_index = [
        token
        for index, row in enumerate(rows)
        for token in range(int(starts[place[index] + 1]) - row.num_logits, int(starts[place[index] + 1]))
    ]

    packed = _to_device(
        device,
        token_ids,
        positions,
        slots,
        slots[slots % page_size == 0] // page_size,
        np.asarray(logits_index, dtype=np.int64),
        np.asarray(pending_targets, dtype=np.int64),
        np.asarray(pending_sources, dtype=np.int64),
    )
    if pending_targets:
        if previous_token_ids is None:
            raise ValueError("a row has a pending_index, but there are no previous_token_ids")
        packed[0].index_copy_(0, packed[5], previous_token_ids.to(torch.int64).index_select(0, packed[6]))
    return RaggedBatch(
        rows=arranged,
        token_starts=tuple(int(start) for start in starts[:-1]),
        num_tokens=num_tokens,
        token_ids=packed[0],
        positions=packed[1],
        slots=packed[2],
        begun_pages=packed[3],
        logits_index=packed[4],
    )


def _to_device(device: torch.device, *arrays: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[torch.Tensor]:
    """All arrays in one transfer."""
    together = torch.from_numpy(np.concatenate(arrays))
    if device.type == "cuda":
        together = together.pin_memory().to(device, non_blocking=True)
    return list(together.split_with_sizes([len(array) for array in arrays]))

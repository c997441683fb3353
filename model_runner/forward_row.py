"""One request's part of a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ForwardRow:
    """``token_ids`` at positions ``start, start + 1, ...``; their keys and values are written to the row's pages.

    The KV of positions before ``start`` is already in the pages. ``block_table[i]`` is the page of positions
    ``i * page_size`` to ``(i + 1) * page_size - 1`` and covers every position of the row.
    """

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    num_logits: int
    """Logits are returned for the row's last ``num_logits`` positions; 0 for a chunk that samples nothing."""
    pending_index: int | None = None
    """Where the row's last token id is not known to the CPU yet: its index in ``previous_token_ids``. The last entry
    of ``token_ids`` is then a placeholder."""

"""A model that computes real, context-dependent logits on paged state."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from scheduler_fakes import PAGE_SIZE, VOCAB_SIZE

from model_runner.forward_row import ForwardRow

NAN_TOKEN = 90
"""A prompt with this token gives logits of NaN."""


def logits_behind(context: Sequence[int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(repr(list(context)).encode()))
    logits = torch.randn(VOCAB_SIZE, generator=generator)
    return logits * float("nan") if NAN_TOKEN in context else logits


class TinyRunner:
    """Keeps the tokens themselves as its KV."""

    vocab_size = VOCAB_SIZE
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.kv: dict[tuple[int, int], int] = {}
        self.num_pending = 0

    def forward(self, rows: Sequence[ForwardRow], previous_token_ids: torch.Tensor | None = None) -> torch.Tensor:
        logits = []
        for row in rows:
            tokens = list(row.token_ids)
            if row.pending_index is not None:
                assert previous_token_ids is not None
                self.num_pending += 1
                tokens[-1] = int(previous_token_ids[row.pending_index])
            for position, token in enumerate(tokens, row.start):
                self.kv[row.block_table[position // PAGE_SIZE], position % PAGE_SIZE] = token
            end = row.start + len(tokens)
            context = [self.kv[row.block_table[p // PAGE_SIZE], p % PAGE_SIZE] for p in range(end)]
            logits += [logits_behind(context[: p + 1]) for p in range(end - row.num_logits, end)]
        return torch.stack(logits) if logits else torch.empty(0, VOCAB_SIZE)

"""The edits that a step makes to its logits before the draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sampling.layout import AllowedTokens, LogitBias
from sampling.orchestrator import CompactPenalties
from sampling.penalizer import Suppressions


@dataclass(frozen=True)
class LogitEdits:
    """Edits of ``[S, V]`` logits. Positions in ``penalties`` and ``suppressions`` are logits rows."""

    logit_bias: LogitBias | None = None
    penalties: Sequence[CompactPenalties] = ()
    suppressions: Suppressions | None = None
    vocab_mask: torch.Tensor | None = None
    """``[S, ceil(V / 32)]`` int32, bit 1 = allowed."""

    @property
    def is_empty(self) -> bool:
        return self.logit_bias is None and not self.penalties and self.suppressions is None and self.vocab_mask is None


def join_masks(
    vocab_mask: torch.Tensor | None, allowed: AllowedTokens | None, num_positions: int
) -> torch.Tensor | None:
    """The grammar's mask and the allow-lists as one; where they have no token in common the grammar's alone."""
    if allowed is None:
        return vocab_mask
    if vocab_mask is None:
        every = torch.full((num_positions, allowed.words.shape[1]), -1, dtype=torch.int32, device=allowed.words.device)
        every[allowed.positions] = allowed.words
        return every
    joined = vocab_mask.clone()
    own = vocab_mask[allowed.positions]
    both = own & allowed.words
    joined[allowed.positions] = torch.where((both != 0).any(dim=1, keepdim=True), both, own)
    return joined

"""Gated activations."""

from __future__ import annotations

import torch
from torch.nn import functional


def silu_and_mul(gate_up: torch.Tensor, *, is_exact: bool) -> torch.Tensor:
    """
    ``silu(gate) * up`` for gate and up side by side, [T, 2 I] to [T, I].

    The fused SiLU kernel treats the last few elements of a thread's share differently from the others, so a row's bits
    would depend on where it lies; the exact variant is made of operations that do not.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    if is_exact:
        return gate / torch.exp(-gate).add_(1.0) * up
    return functional.silu(gate).mul_(up)

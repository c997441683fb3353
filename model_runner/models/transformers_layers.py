"""Our layers in the place of a transformers model's own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.tensor import DTensor


def compute_by(module: nn.Module, layer: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let ``layer``, of tokens [T] or rows [T, K] to [T, N], compute a module of token ids or of rows."""
    num_inner = 0 if isinstance(module, nn.Embedding) else 1

    def forward(x: torch.Tensor) -> torch.Tensor:
        outer = x.shape[: x.dim() - num_inner]
        out = layer(x.reshape(-1, *x.shape[len(outer) :]))
        return out.reshape(*outer, out.shape[-1])

    object.__setattr__(module, "forward", forward)


def count_own_parameters(model: nn.Module) -> int:
    """Elements of the parameters that this process holds."""
    held = (each.to_local() if isinstance(each, DTensor) else each for each in model.parameters())
    return sum(each.numel() for each in held)

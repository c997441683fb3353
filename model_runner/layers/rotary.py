"""Rotary position embedding."""

from __future__ import annotations

import torch

from model_runner.spec import RopeSpec


class RotaryTable:
    """Cosines and sines of every position, made once."""

    def __init__(self, rope: RopeSpec, *, num_positions: int, dtype: torch.dtype, device: torch.device) -> None:
        positions = torch.arange(num_positions, dtype=torch.float32)
        frequencies = rope.inverse_frequencies.to("cpu", torch.float32)
        angles = torch.outer(positions, frequencies)
        # [positions, 2, D / 2]: half of what a rotation needs, as a long context has many positions.
        table = torch.stack([angles.cos_(), torch.outer(positions, frequencies).sin_()], dim=1).mul_(rope.scaling)
        self._table = table.to(device=device, dtype=dtype)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines [T, 1, D] of positions [T], for :func:`rotate`."""
        cosines, sines = self._table.index_select(0, positions).unsqueeze(1).unbind(2)
        return torch.cat([cosines, cosines], -1), torch.cat([-sines, sines], -1)


def rotate(x: torch.Tensor, cosines: torch.Tensor, signed_sines: torch.Tensor) -> torch.Tensor:
    """
    ``x * cos + roll(x, D / 2) * signed sin`` for heads x [T, H, D]: the half-split layout's rotation.

    The two products are rounded before they are added, on every path alike.
    """
    rolled = torch.roll(x, x.shape[-1] // 2, -1)
    return (x * cosines).add_(rolled.mul_(signed_sines))

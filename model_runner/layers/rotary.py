"""Rotary position embedding."""

from __future__ import annotations

import torch

from model_runner.models.spec import RopeSpec


class RotaryTable:
    """Cosines and signed sines of every position, made once."""

    def __init__(self, rope: RopeSpec, *, num_positions: int, dtype: torch.dtype, device: torch.device) -> None:
        positions = torch.arange(num_positions, dtype=torch.float32)
        angles = torch.outer(positions, rope.inverse_frequencies.to("cpu", torch.float32))
        cosines = (angles.cos() * rope.scaling).to(dtype)
        sines = (angles.sin() * rope.scaling).to(dtype)
        # [positions, 2, D]: the rotation of the half-split layout is x * cos + roll(x, D / 2) * signed sin.
        table = torch.stack([torch.cat([cosines, cosines], -1), torch.cat([-sines, sines], -1)], dim=1)
        self._table = table.to(device)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines [T, 1, D] of positions [T]."""
        rows = self._table.index_select(0, positions)
        return rows[:, 0:1], rows[:, 1:2]


def rotate(x: torch.Tensor, cosines: torch.Tensor, signed_sines: torch.Tensor) -> torch.Tensor:
    """Rotate heads x [T, H, D]; the two products are rounded before they are added, on every path alike."""
    rolled = torch.roll(x, x.shape[-1] // 2, -1)
    return (x * cosines).add_(rolled.mul_(signed_sines))

"""Random weights for a configuration, to measure speed without a checkpoint."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch

from model_runner.loading.gguf_names import ROPE_FACTORS
from model_runner.loading.source import Cut, TensorSource


class DummySource(TensorSource):
    """Every tensor a model asks for, drawn from (seed, name), so that no order of reading matters."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed

    def names(self) -> frozenset[str]:
        return frozenset(self._read_names)

    def __contains__(self, name: str) -> bool:
        # An untied head is asked for by name; every other optional tensor has a spelling that is preferred.
        return name != ROPE_FACTORS and not name.endswith(".experts.gate_up_proj")

    def identity(self) -> str:
        return f"random weights of seed {self._seed}"

    def _shape(self, name: str, asked: Sequence[int]) -> tuple[int, ...]:
        return tuple(asked)

    def _load(self, name: str, shape: Sequence[int], cut: Cut | None) -> torch.Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(*shape)
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))
        # All of it, also for a part: a tensor is the same into however many ranks the model is cut.
        whole = torch.randn(*shape, generator=generator) * 0.02
        return whole if cut is None else whole[cut.index]

    def _release(self) -> None:
        """Nothing is mapped."""

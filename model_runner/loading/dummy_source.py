"""Random weights for a configuration, to measure speed without a checkpoint."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch

from model_runner.loading.gguf_names import ROPE_FACTORS
from model_runner.loading.source import TensorSource


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

    def _load(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(*shape)
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))
        return torch.randn(*shape, generator=generator) * 0.02

    def _release(self) -> None:
        """Nothing is mapped."""

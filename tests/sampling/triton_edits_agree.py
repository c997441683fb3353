"""Compares the fused kernel, in Triton's interpreter, with the tensor operations; run as a program.

Triton decides at import whether it interprets, so this needs a process of its own.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from sampling_reference import pack_masks

from sampling import triton_edits
from sampling.apply_edits import apply_edits
from sampling.layout import LogitBias
from sampling.logit_edits import LogitEdits
from sampling.orchestrator import CompactPenalties
from sampling.penalizer import Suppressions

S, V = 3, 300


def lists(random: np.random.Generator, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = random.choice(S * V, size, replace=False)
    pairs.sort()
    return torch.from_numpy(pairs // V), torch.from_numpy(pairs % V)


def compact(random: np.random.Generator, scales: bool, adds: bool) -> CompactPenalties:
    capacity = 24  # more than one round of the shrunken lists below
    token_ids = torch.full((2, capacity), -1, dtype=torch.int32)
    for row, length in enumerate((capacity, 5)):
        token_ids[row, :length] = torch.from_numpy(random.choice(V, length, replace=False))
    scaling = torch.from_numpy(random.uniform(0.5, 2, (2, capacity)).astype(np.float32)) if scales else None
    additive = torch.from_numpy(random.normal(size=(2, capacity)).astype(np.float32)) if adds else None
    return CompactPenalties(torch.tensor([2, 0]), token_ids, scaling, additive)


def main() -> int:
    triton_edits._TILE = 64  # several tiles and several rounds of each list, the last ones partly filled
    triton_edits._ENTRIES = 16
    differences = 0
    for case in range(16):
        random = np.random.default_rng(case)
        bias = suppressions = mask = None
        if case & 1:
            bias = LogitBias(*lists(random, 50), torch.from_numpy(random.normal(size=50).astype(np.float32)))
        penalties = [compact(random, bool(case & 2), bool(case & 4))] if case & 6 else []
        if case & 8:
            positions, token_ids = lists(random, 60)
            shuffled = torch.from_numpy(random.permutation(60))
            active = torch.from_numpy(random.random(60) < 0.7)
            suppressions = Suppressions(positions[shuffled], token_ids[shuffled], active)
        if case % 3:
            allowed: list[list[bool] | None] = [(random.random(V) < 0.5).tolist(), None, [False] * V]
            mask = torch.from_numpy(pack_masks(allowed, V))
        edits = LogitEdits(bias, penalties, suppressions, mask)
        expected = torch.from_numpy(random.normal(size=(S, V)).astype(np.float32))
        expected[0, 7] = float("nan")
        expected[1, 9] = float("inf")
        fused = expected.clone()
        apply_edits(expected, edits)
        triton_edits.apply_edits_fused(fused, edits)
        if not torch.equal(expected.nan_to_num(nan=12345.0), fused.nan_to_num(nan=12345.0)):
            print(f"case {case} differs at {torch.nonzero(expected != fused).tolist()[:8]}")
            differences += 1
    return differences


if __name__ == "__main__":
    sys.exit(main())

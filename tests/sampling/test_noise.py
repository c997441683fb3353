"""The noise is the published generator's, the same on every path, and looks random in every direction."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sampling_reference as reference
import torch
from scipy import stats

from sampling.noise import gumbel, gumbel_torch, philox_4x32, position_keys, token_bits, token_bits_torch

# From kat_vectors of Random123, the generator's own library.
KNOWN_ANSWERS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def uniforms(seeds: np.ndarray, choices: np.ndarray, positions: np.ndarray, token_ids: np.ndarray) -> np.ndarray:
    """``[N, T]`` uniforms of N counters and T tokens."""
    keys = position_keys(seeds.astype(np.int64), choices.astype(np.int64), positions.astype(np.int64))
    bits = token_bits(keys.T[:, :, None], token_ids.astype(np.uint32)[None, :])
    return (bits + 0.5) * 2.0**-32


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    counters = tuple(np.array([word], np.uint64) for word in counter)
    keys = (np.array([key[0]], np.uint64), np.array([key[1]], np.uint64))
    assert [int(word[0]) for word in philox_4x32(counters, keys)] == expected
    assert reference.philox(counter, key) == expected


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 2**32])
def test_numpy_torch_and_plain_python_agree_on_every_bit(seed: int) -> None:
    keys = position_keys(np.array([seed]), np.array([3]), np.array([7]))
    token_ids = np.array([0, 1, 5, 49151, 151935, 2**31 - 1], np.uint32)
    expected = [reference.token_bits(seed, 3, 7, int(token_id)) for token_id in token_ids]
    assert token_bits(keys[0][:, None], token_ids).tolist() == expected
    as_torch = token_bits_torch(
        torch.from_numpy(keys[0].astype(np.int64))[:, None], torch.from_numpy(token_ids.astype(np.int64))
    )
    assert as_torch.tolist() == expected


def test_noise_is_finite_at_both_ends() -> None:
    ends = np.array([0, 1, 2**32 - 2, 2**32 - 1], np.uint32)
    assert np.isfinite(gumbel(ends)).all()
    assert (np.diff(gumbel(ends)) < 0).all()
    assert np.allclose(gumbel(ends), gumbel_torch(torch.from_numpy(ends.astype(np.int64))).numpy(), rtol=1e-14)
    assert math.isclose(gumbel(ends)[0], reference.gumbel(0))


def test_uniforms_are_uniform_along_tokens_positions_choices_and_seeds() -> None:
    size = 20_000
    line, zero, one = np.arange(size), np.zeros(size), np.zeros(1)
    along = {
        "tokens": uniforms(one + 5, one, one, line)[0],
        "positions": uniforms(zero + 5, zero, line, one)[:, 0],
        "choices": uniforms(zero + 5, line, zero, one)[:, 0],
        "seeds": uniforms(line, zero, zero, one)[:, 0],
    }
    for name, values in along.items():
        assert stats.kstest(values, "uniform").pvalue > 1e-4, name
        serial = np.corrcoef(values[:-1], values[1:])[0, 1]
        assert abs(serial) < 4 / math.sqrt(size), name
        # Pairs of neighbours fill the unit square evenly.
        grid = np.histogram2d(values[:-1], values[1:], bins=10, range=[[0, 1], [0, 1]])[0]
        assert stats.chisquare(grid.ravel()).pvalue > 1e-4, name


@pytest.mark.parametrize("other", [(6, 0, 0), (5, 1, 0), (5, 0, 1), (5 + 2**32, 0, 0), (-5, 0, 0)])
def test_noise_of_neighbouring_counters_is_not_correlated(other: tuple[int, int, int]) -> None:
    size = 49_152
    tokens = np.arange(size)
    first = uniforms(np.array([5]), np.array([0]), np.array([0]), tokens)[0]
    second = uniforms(*(np.array([value]) for value in other), tokens)[0]
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(size)
    # Nor are they the same values in another order, as keying by exclusive-or alone would give.
    assert len(np.intersect1d(first, second)) < 20


def test_every_bit_is_fair_and_changes_with_half_of_the_inputs_bits() -> None:
    keys = position_keys(np.arange(64), np.zeros(64, np.int64), np.zeros(64, np.int64)).T[:, :, None]
    token_ids = np.arange(2048, dtype=np.uint32)[None, :]
    bits = token_bits(keys, np.broadcast_to(token_ids, (64, 2048)))
    for bit in range(32):
        assert abs(((bits >> np.uint32(bit)) & 1).mean() - 0.5) < 0.01
    for flipped in range(17):
        changed = bits ^ token_bits(keys, np.broadcast_to(token_ids ^ np.uint32(1 << flipped), (64, 2048)))
        assert abs(np.unpackbits(changed.view(np.uint8)).mean() - 0.5) < 0.01

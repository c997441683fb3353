"""Counter-based noise: the same (seed, choice, position, token) has the same noise anywhere, in any batch.

Two stages, both pure functions of the counter. Philox4x32-10 turns (seed, choice, position) into a key per drawn
position: a handful of numbers per step, so the strongest generator costs nothing. A keyed 32-bit mixer turns (key,
token id) into 32 bits: one such value for each token of the vocabulary, so it has to be cheap.

Sources: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011) for Philox and its
constants; Chris Wellons, "Prospecting for hash functions" (nullprogram.com, 2018) for ``triple32``, whose three
multiplications each get a word of the key in front here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

_PHILOX_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
_PHILOX_ROUNDS = 10

MIXER_ROUNDS = ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB))
MIXER_LAST_SHIFT = 14

_LOW_32 = np.uint64(0xFFFFFFFF)
_SHIFT_32 = np.uint64(32)

UInt32Array = npt.NDArray[np.uint32]
Float64Array = npt.NDArray[np.float64]


def philox_4x32(
    counter: tuple[npt.NDArray[np.uint64], ...], key: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]
) -> tuple[npt.NDArray[np.uint64], ...]:
    """Philox4x32-10 over arrays of equal shape; every word is 32 bits held in 64."""
    x0, x1, x2, x3 = counter
    key_0, key_1 = key
    for _ in range(_PHILOX_ROUNDS):
        product_0 = x0 * _PHILOX_MULTIPLIERS[0]
        product_1 = x2 * _PHILOX_MULTIPLIERS[1]
        x0 = (product_1 >> _SHIFT_32) ^ x1 ^ key_0
        x1 = product_1 & _LOW_32
        x2 = (product_0 >> _SHIFT_32) ^ x3 ^ key_1
        x3 = product_0 & _LOW_32
        key_0 = (key_0 + np.uint64(_PHILOX_WEYL[0])) & _LOW_32
        key_1 = (key_1 + np.uint64(_PHILOX_WEYL[1])) & _LOW_32
    return x0, x1, x2, x3


def position_keys(
    seeds: npt.NDArray[np.int64], choice_indices: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
) -> UInt32Array:
    """The key of each drawn position: ``[S, 4]``, from ``[S]`` seeds (any int64), choices and output positions."""
    words = seeds.view(np.uint64)
    zero = np.zeros(len(seeds), np.uint64)
    counter = (positions.astype(np.uint64) & _LOW_32, choice_indices.astype(np.uint64) & _LOW_32, zero, zero)
    key = philox_4x32(counter, (words & _LOW_32, words >> _SHIFT_32))
    return np.stack(key, axis=-1).astype(np.uint32)


def token_bits(
    keys: UInt32Array,
    token_ids: UInt32Array,
    out: UInt32Array | None = None,
    scratch: UInt32Array | None = None,
) -> UInt32Array:
    """32 bits for each token: ``keys`` is ``[4, ...]``, broadcast against ``token_ids``.

    ``out`` and ``scratch``, of the result's shape, spare the allocations.
    """
    bits: UInt32Array = np.bitwise_xor(token_ids, keys[0], out=out)
    shifted = np.empty_like(bits) if scratch is None else scratch
    for index, (shift, multiplier) in enumerate(MIXER_ROUNDS):
        np.right_shift(bits, np.uint32(shift), out=shifted)
        np.bitwise_xor(bits, shifted, out=bits)
        np.multiply(bits, np.uint32(multiplier), out=bits)
        np.bitwise_xor(bits, keys[index + 1], out=bits)
    np.right_shift(bits, np.uint32(MIXER_LAST_SHIFT), out=shifted)
    np.bitwise_xor(bits, shifted, out=bits)
    return bits


def gumbel(bits: UInt32Array) -> Float64Array:
    """Standard Gumbel noise, finite for all 2**32 values: ``-log(-log(1 - u))`` with ``u = (bits + 0.5) / 2**32``.

    Small ``u`` becomes large noise, which is where a double keeps most digits, so that unlikely tokens are drawn as
    often as they should be down to probabilities of 2**-32.
    """
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-32
    return np.asarray(-np.log(-np.log1p(-uniform)), np.float64)


def token_bits_torch(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """:func:`token_bits` on any device: int64 tensors that hold 32-bit words, ``keys`` ``[4, ...]``."""
    bits = token_ids ^ keys[0]
    for index, (shift, multiplier) in enumerate(MIXER_ROUNDS):
        bits = bits ^ (bits >> shift)
        bits = ((bits * multiplier) & 0xFFFFFFFF) ^ keys[index + 1]
    return bits ^ (bits >> MIXER_LAST_SHIFT)


def gumbel_torch(bits: torch.Tensor) -> torch.Tensor:
    """:func:`gumbel` on any device, float64."""
    uniform = (bits.double() + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-uniform))

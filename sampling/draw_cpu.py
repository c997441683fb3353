"""The draw of :mod:`sampling.draw` on a CPU: little arithmetic on the whole row, exact arithmetic on a few tokens.

A row is filtered to the tokens that can win, then those are scored in float64 as the definition says. What can win:

- with top-k, top-p or min-p: the survivors, found by partial selection instead of sorting the vocabulary;
- without: tokens whose score in float32 lies within :data:`_MARGIN` of the best. The float32 score is wrong by less
  than half of that, so the winner is always among them.

NumPy does the wide passes, in tiles that fit a core's cache: several times faster than the same tensor operations.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from sampling.draw import MAX_LOGIT, DrawParameters
from sampling.noise import UInt32Array, gumbel, token_bits

Float32Array = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]

_MARGIN = np.float32(1.0)
_FIRST_SELECTION = 256  # how many of the most likely tokens top-p looks at first; times 8 while they do not suffice


def draw_cpu(logits: torch.Tensor, parameters: DrawParameters) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`sampling.draw.draw` for logits in main memory."""
    values = logits.numpy()
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        highest = values.max(axis=1)
        failed = np.isnan(highest) | np.isneginf(highest)
        token_ids = np.zeros(len(values), np.int64)
        greedy = parameters.is_greedy
        for row in np.flatnonzero(greedy & ~failed):
            token_ids[row] = values[row].argmax()
        drawn = np.flatnonzero(~greedy & ~failed)
        if len(drawn):
            token_ids[drawn] = _draw_rows(values, highest, drawn, parameters)
    return torch.from_numpy(token_ids), torch.from_numpy(failed)


def _draw_rows(
    values: Float32Array, highest: Float32Array, rows: npt.NDArray[np.intp], parameters: DrawParameters
) -> Int64Array:
    vocabulary = np.arange(values.shape[1], dtype=np.uint32)
    candidates = []
    for row in rows:
        logits = values[row]
        if np.isposinf(highest[row]):
            logits = np.minimum(logits, np.float32(MAX_LOGIT))
        top_k = int(parameters.top_k[row])
        top_p, min_p = float(parameters.top_p[row]), float(parameters.min_p[row])
        temperature = float(parameters.temperature[row])
        if top_k >= len(logits) and top_p >= 1.0 and min_p <= 0.0:
            kept = _possible_winners(logits, temperature, parameters.keys[row], vocabulary)
        else:
            kept = _filtered(logits, temperature, top_k, top_p, min_p)
        candidates.append(kept)
    lengths = np.array([len(kept) for kept in candidates])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    owner = np.repeat(np.arange(len(rows)), lengths)
    tokens = np.concatenate(candidates)
    logits = np.minimum(values[rows[owner], tokens], np.float32(MAX_LOGIT)).astype(np.float64)
    bits = token_bits(np.ascontiguousarray(parameters.keys[rows].T)[:, owner], tokens.astype(np.uint32))
    scores = logits / parameters.temperature[rows][owner] + gumbel(bits)
    best = np.maximum.reduceat(scores, starts)
    # Lowest id among equals: ids that did not win count as the largest one.
    winners = np.where(scores == best[owner], tokens, np.iinfo(np.int64).max)
    return np.asarray(np.minimum.reduceat(winners, starts), np.int64)


def _possible_winners(
    logits: Float32Array, temperature: float, key: UInt32Array, vocabulary: UInt32Array
) -> Int64Array:
    """Tokens whose score is close to the best: a superset of the winner, and of its equals."""
    uniform = token_bits(key, vocabulary).astype(np.float32)
    np.multiply(uniform, np.float32(-(2.0**-32)), out=uniform)
    # A float32 near 1 must not round to 1. The clamp lifts the lowest noise by at most log(22.9 / 16.6) = 0.32.
    np.maximum(uniform, np.float32(-(1.0 - 2.0**-24)), out=uniform)
    np.minimum(uniform, np.float32(-(2.0**-33)), out=uniform)
    np.log1p(uniform, out=uniform)
    np.negative(uniform, out=uniform)
    np.log(uniform, out=uniform)
    # Relative to the highest logit a score near the best is small, whatever the temperature, so float32 carries it.
    scores = (logits - logits.max()) * np.float32(min(1.0 / temperature, float(np.finfo(np.float32).max)))
    np.subtract(scores, uniform, out=scores)
    return np.flatnonzero(scores >= scores.max() - _MARGIN)


def _filtered(logits: Float32Array, temperature: float, top_k: int, top_p: float, min_p: float) -> Int64Array:
    """Ids that top-k, then top-p over what top-k left, then min-p keep; equal logits in the order of their ids."""
    size = len(logits)
    highest = float(logits.max())
    if top_p < 1.0 or top_k < size:
        count = min(top_k, size)
        if top_p >= 1.0:
            tokens = _largest(logits, count)
        else:
            tokens = _nucleus(logits, highest, temperature, count, top_p)
    else:
        # Loose in float32, decided in float64 below.
        limit = np.float32(highest + temperature * np.log(min_p) * 1.0001 - 1e-5 * abs(highest) - 1e-30)
        tokens = np.flatnonzero(logits >= limit)
    if min_p > 0.0:
        scaled = logits[tokens].astype(np.float64) / temperature
        tokens = tokens[~(scaled < highest / temperature + np.log(min_p))]
    return tokens


def _nucleus(logits: Float32Array, highest: float, temperature: float, top_k: int, top_p: float) -> Int64Array:
    """The most likely of the ``top_k`` tokens, until their share reaches ``top_p``."""
    wanted = min(top_k, _FIRST_SELECTION)
    total = None
    if top_k >= len(logits):
        total = np.exp(logits.astype(np.float64) / temperature - highest / temperature).sum()
    elif top_k > wanted:
        wanted = top_k
    while True:
        tokens = _largest(logits, wanted)
        weights = np.exp(logits[tokens].astype(np.float64) / temperature - highest / temperature)
        before = np.cumsum(weights) - weights
        keep = before < top_p * (total if total is not None else weights.sum())
        if not keep[-1] or wanted >= top_k or wanted >= len(logits):
            nucleus: Int64Array = tokens[keep]
            return nucleus
        wanted = min(top_k, wanted * 8)


def _largest(logits: Float32Array, count: int) -> Int64Array:
    """Ids of the ``count`` largest logits, largest first, equal ones by id."""
    size = len(logits)
    if count >= size:
        return np.asarray(np.argsort(-logits, kind="stable"), np.int64)
    limit = np.partition(logits, size - count)[size - count]
    tokens = np.flatnonzero(logits >= limit)
    in_order: Int64Array = tokens[np.argsort(-logits[tokens], kind="stable")]
    return in_order[:count]

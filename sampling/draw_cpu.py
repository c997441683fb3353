"""The draw of :mod:`sampling.draw` on a CPU: little arithmetic on the whole row, exact arithmetic on a few tokens.

A row is filtered to the tokens that can win, then those are scored in float64 as the definition says. What can win:

- with top-k, top-p or min-p: the survivors, found by partial selection instead of sorting the vocabulary;
- without: tokens whose score in float32 lies within :data:`_MARGIN` of the best. The float32 score is wrong by less
  than half of that, so the winner is always among them.

NumPy does the wide passes, in tiles that fit a core's cache: several times faster than the same tensor operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from sampling.draw_parameters import MAX_LOGIT, DrawParameters
from sampling.noise import UInt32Array, gumbel, token_bits

Float32Array = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]

_MARGIN = np.float32(1.0)
# Rounding in float32, for a vocabulary below a million tokens: of the exponents 2.5e-6 (they are log V on average at
# most), of their exponentials 3e-7, of a pairwise sum 1.9e-6.
_TOTAL_ERROR = 5e-6
_FIRST_SELECTION = 256  # how many of the most likely tokens top-p looks at first; times 8 while they do not suffice


def draw_cpu(logits: torch.Tensor, parameters: DrawParameters) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`sampling.draw.draw` for logits in main memory."""
    values: Float32Array = logits.numpy()
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
    workspace = _Workspace(values.shape[1])
    clamped = highest > _LARGEST
    highest = np.minimum(highest, _LARGEST)
    candidates = []
    for row in rows:
        logits = values[row]
        if clamped[row]:
            logits = np.minimum(logits, _LARGEST)
        filters = _Filters(
            float(highest[row]),
            float(parameters.temperature[row]),
            min(int(parameters.top_k[row]), len(logits)),
            float(parameters.top_p[row]),
            float(parameters.min_p[row]),
        )
        if filters.keep_everything(len(logits)):
            candidates.append(_possible_winners(logits, filters, parameters.keys[row], workspace))
        else:
            candidates.append(_filtered(logits, filters, workspace))
    lengths = np.array([len(kept) for kept in candidates])
    starts = np.cumsum(lengths) - lengths
    owner = np.repeat(np.arange(len(rows)), lengths)
    tokens = np.concatenate(candidates)
    logits_of_tokens = np.minimum(values[rows[owner], tokens], _LARGEST).astype(np.float64)
    bits = token_bits(np.ascontiguousarray(parameters.keys[rows].T)[:, owner], tokens.astype(np.uint32))
    below_highest = logits_of_tokens - highest[rows][owner]
    scores = below_highest / parameters.temperature[rows][owner] + gumbel(bits)
    best = np.maximum.reduceat(scores, starts)
    # Lowest id among equals: ids that did not win count as the largest one.
    winners = np.where(scores == best[owner], tokens, np.iinfo(np.int64).max)
    return np.asarray(np.minimum.reduceat(winners, starts), np.int64)


_LARGEST = np.float32(MAX_LOGIT)


class _Workspace:
    """Arrays of the vocabulary's width, used again for each row: fresh ones would cost more than the arithmetic."""

    def __init__(self, vocab_size: int) -> None:
        self.vocabulary = np.arange(vocab_size, dtype=np.uint32)
        self.bits = np.empty(vocab_size, np.uint32)
        self.shifted = np.empty(vocab_size, np.uint32)
        self.noise = np.empty(vocab_size, np.float32)
        self.scores = np.empty(vocab_size, np.float32)
        self.weights = np.empty(vocab_size, np.float64)


@dataclass(frozen=True)
class _Filters:
    """Of one row; ``highest`` is its largest logit."""

    highest: float
    temperature: float
    top_k: int
    top_p: float
    min_p: float

    def keep_everything(self, vocab_size: int) -> bool:
        return self.top_k >= vocab_size and self.top_p >= 1.0 and self.min_p <= 0.0


def _possible_winners(logits: Float32Array, filters: _Filters, key: UInt32Array, workspace: _Workspace) -> Int64Array:
    """Tokens whose score is close to the best: a superset of the winner, and of its equals."""
    noise, scores = workspace.noise, workspace.scores
    bits = token_bits(key, workspace.vocabulary, workspace.bits, workspace.shifted)
    np.multiply(bits, np.float32(-(2.0**-32)), out=noise, dtype=np.float32, casting="unsafe")
    # A float32 near 1 must not round to 1. The clamp lifts the lowest noise by at most log(22.9 / 16.6) = 0.32.
    np.clip(noise, np.float32(-(1.0 - 2.0**-24)), np.float32(-(2.0**-33)), out=noise)
    np.log1p(noise, out=noise)
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    # Relative to the highest logit a score near the best is small, whatever the temperature, so float32 carries it.
    np.subtract(logits, np.float32(filters.highest), out=scores)
    np.multiply(scores, np.float32(min(1.0 / filters.temperature, MAX_LOGIT)), out=scores)
    np.subtract(scores, noise, out=scores)
    return np.flatnonzero(scores >= scores.max() - _MARGIN)


def _filtered(logits: Float32Array, filters: _Filters, workspace: _Workspace) -> Int64Array:
    """Ids that top-k, then top-p over what top-k left, then min-p keep; of equal logits the lowest ids come first."""
    if filters.top_p < 1.0:
        tokens = _nucleus(logits, filters, workspace)
    elif filters.top_k < len(logits):
        largest = _largest(logits, filters.top_k, workspace)
        tokens = _down_to(logits, largest[-1], len(largest))
    else:
        # Loose in float32, decided in float64 below.
        limit = filters.highest + filters.temperature * np.log(filters.min_p) * 1.0001
        tokens = np.flatnonzero(logits >= np.float32(limit - 1e-5 * abs(filters.highest) - 1e-30))
    if filters.min_p > 0.0:
        scaled = (logits[tokens].astype(np.float64) - filters.highest) / filters.temperature
        tokens = tokens[scaled >= np.log(filters.min_p)]
    return tokens


def _nucleus(logits: Float32Array, filters: _Filters, workspace: _Workspace) -> Int64Array:
    """The most likely of the ``top_k`` tokens, until their share reaches ``top_p``."""
    wanted = filters.top_k
    low = high = 0.0
    if filters.top_k >= len(logits):
        wanted = min(filters.top_k, _FIRST_SELECTION)
        near = filters.top_p * _total_in_float32(logits, filters, workspace)
        low, high = near * (1.0 - _TOTAL_ERROR), near * (1.0 + _TOTAL_ERROR)
    while True:
        largest = _largest(logits, wanted, workspace)
        shares = np.cumsum(_weights(largest, filters, np.empty(len(largest))))
        if filters.top_k < len(logits):
            low = high = filters.top_p * shares[-1]
        if high <= shares[-1] or wanted >= filters.top_k:
            break
        wanted = min(filters.top_k, wanted * 8)
    # A token stays while the share of those before it is below the limit.
    fewest, most = np.searchsorted(shares[:-1], (low, high), side="left")
    if fewest != most:
        limit = filters.top_p * _weights(logits, filters, workspace.weights).sum()
        fewest = np.searchsorted(shares[:-1], limit, side="left")
    return _down_to(logits, largest[fewest], int(fewest) + 1)


def _total_in_float32(logits: Float32Array, filters: _Filters, workspace: _Workspace) -> float:
    """The sum of :func:`_weights`, wrong by less than :data:`_TOTAL_ERROR` of itself, in half the time."""
    weights = workspace.noise
    np.subtract(logits, np.float32(filters.highest), out=weights)
    np.multiply(weights, np.float32(min(1.0 / filters.temperature, MAX_LOGIT)), out=weights)
    np.exp(weights, out=weights)
    return float(weights.sum())


def _weights(logits: Float32Array, filters: _Filters, out: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Probabilities times a constant: ``exp((logit - highest) / temperature)`` in float64."""
    np.subtract(logits, filters.highest, out=out, dtype=np.float64)
    np.divide(out, filters.temperature, out=out)
    np.exp(out, out=out)
    return out


def _largest(logits: Float32Array, count: int, workspace: _Workspace) -> Float32Array:
    """The ``count`` largest logits, largest first: values, as those sort several times faster than ids do."""
    scratch = workspace.scores
    np.negative(logits, out=scratch)
    if count < len(scratch):
        scratch.partition(count - 1)
    scratch[:count].sort()
    return -scratch[:count]


def _down_to(logits: Float32Array, last: np.float32, count: int) -> Int64Array:
    """Ids of the ``count`` largest logits, the smallest of which is ``last``; of those equal to it the lowest ids."""
    tokens = np.flatnonzero(logits >= last)
    surplus = len(tokens) - count
    if surplus > 0:
        equal = np.flatnonzero(logits[tokens] == last)
        tokens = np.delete(tokens, equal[len(equal) - surplus :])
    return tokens

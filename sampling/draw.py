"""One draw per row: the arg-max of logit / temperature + noise over the tokens that the filters keep.

The definition, for every kept token t of a position, in float64: ``score(t) = (logit(t) - highest logit) / temperature
+ gumbel(bits(key, t))``; the highest score wins, the lowest id among equals. Adding standard Gumbel noise and taking
the arg-max draws exactly from the softmax (Gumbel 1954; Maddison, Tarlow and Minka, "A* sampling", 2014).

This file is the definition over tensors, for any device, without a wait for it. :mod:`sampling.draw_cpu` gives the
same answers faster on a CPU.
"""

from __future__ import annotations

import numpy as np
import torch

from sampling.draw_cpu import draw_cpu
from sampling.draw_parameters import MAX_LOGIT, DrawParameters
from sampling.noise import gumbel_torch, token_bits_torch


def draw(logits: torch.Tensor, parameters: DrawParameters) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token from each row.

    Parameters
    ----------
    logits
        ``[S, V]`` float32, already penalised and masked.
    parameters
        Of each row.

    Returns
    -------
    token_ids
        ``[S]`` int64; 0 where the row failed.
    failed
        ``[S]`` bool: the row holds a NaN, or nothing but -inf.
    """
    if logits.device.type == "cpu":
        return draw_cpu(logits, parameters)
    return draw_torch(logits, parameters)


def draw_torch(logits: torch.Tensor, parameters: DrawParameters) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`draw` in tensor operations alone."""
    device = logits.device
    highest = logits.amax(dim=1)
    failed = torch.isnan(highest) | torch.isneginf(highest)
    greedy_rows = parameters.is_greedy
    if greedy_rows.all():
        token_ids = _first_argmax(logits)
        return torch.where(failed, 0, token_ids), failed
    # One transfer for all parameters of the step.
    host = np.stack([parameters.temperature, parameters.top_k, parameters.top_p, parameters.min_p])
    temperature, top_k, top_p, min_p = torch.from_numpy(host.astype(np.float64)).to(device, non_blocking=True)
    keys = torch.from_numpy(parameters.keys.astype(np.int64)).to(device, non_blocking=True)
    greedy = temperature == 0.0
    scaled = logits.clamp(max=MAX_LOGIT).double() - highest.clamp(max=MAX_LOGIT).double()[:, None]
    scaled = scaled / torch.where(greedy, 1.0, temperature)[:, None]
    kept = scaled
    if parameters.needs_order.any():
        kept = _keep_top(kept, top_k, top_p)
    if (parameters.min_p > 0.0).any():
        kept = kept.masked_fill(scaled < torch.log(min_p)[:, None], float("-inf"))
    vocabulary = torch.arange(logits.shape[1], device=device)
    noise = gumbel_torch(token_bits_torch(keys.T[:, :, None], vocabulary[None, :]))
    scores = torch.where(greedy[:, None], scaled, kept + noise)
    return torch.where(failed, 0, _first_argmax(scores)), failed


def _keep_top(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """-inf for tokens that top-k, then top-p over what top-k left, removes; equals are kept lowest id first."""
    ordered, token_ids = torch.sort(scaled, dim=1, descending=True, stable=True)
    rank = torch.arange(scaled.shape[1], device=scaled.device)[None, :]
    weights = torch.exp(ordered)
    weights = torch.where(rank < top_k[:, None], weights, 0.0)
    before = torch.cumsum(weights, dim=1) - weights
    total = weights.sum(dim=1, keepdim=True)
    keep = (rank < top_k[:, None]) & ((before < top_p[:, None] * total) | (top_p[:, None] >= 1.0))
    return torch.full_like(scaled, float("-inf")).scatter(1, token_ids, ordered.masked_fill(~keep, float("-inf")))


def _first_argmax(scores: torch.Tensor) -> torch.Tensor:
    """The lowest index among the highest, which ``torch.argmax`` does not promise."""
    highest = scores.amax(dim=1, keepdim=True)
    vocabulary = torch.arange(scores.shape[1], device=scores.device)[None, :]
    return torch.where(scores == highest, vocabulary, scores.shape[1] - 1).amin(dim=1)

"""Log-probabilities of drawn and most likely tokens, from the model's own logits, before any change to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

MINIMUM_LOGPROB = -9999.0
"""Stands for -inf, which JSON cannot carry; the value OpenAI documents for very unlikely tokens."""


class SampledTopLogprob(NamedTuple):
    token_id: int
    logprob: float


class SampledLogprob(NamedTuple):
    """Log-probability of one token and of the most likely ones at its position, most likely first; finite."""

    token_id: int
    logprob: float
    top: list[SampledTopLogprob]


@dataclass(frozen=True)
class LogprobTensors:
    """Log-probabilities of N positions, still on the device.

    ``token_ids`` and ``logprobs`` ``[N]`` are of the given tokens, ``top_token_ids`` and ``top_logprobs`` ``[N, K]`` of
    the most likely ones; K is the most that any position asked for.
    """

    token_ids: torch.Tensor
    logprobs: torch.Tensor
    top_token_ids: torch.Tensor
    top_logprobs: torch.Tensor

    def to_lists(self, num_top: Sequence[int]) -> list[SampledLogprob]:
        """As Python values, with ``num_top[i]`` most likely tokens at position i. Waits for the device."""
        tops = zip(self.top_token_ids.tolist(), self.top_logprobs.tolist(), strict=True)
        drawn = zip(self.token_ids.tolist(), self.logprobs.tolist(), strict=True)
        top_lists = [
            [
                SampledTopLogprob(token_id, logprob)
                for token_id, logprob in zip(ids[:count], values[:count], strict=True)
            ]
            for (ids, values), count in zip(tops, num_top, strict=True)
        ]
        return [
            SampledLogprob(token_id, logprob, top) for (token_id, logprob), top in zip(drawn, top_lists, strict=True)
        ]


_SLICE_ELEMENTS = 1 << 23
"""Logits looked at in one go: temporaries are as large, and a whole chunk of a prompt would need many times that."""


def compute_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> LogprobTensors:
    """Log-softmax at the given tokens and at the ``num_top`` most likely ones.

    Parameters
    ----------
    logits
        ``[N, V]`` float32, as the model gave them. NaN counts as -inf, +inf as the largest float.
    token_ids
        ``[N]`` int64.
    num_top
        0 to V.

    Returns
    -------
    LogprobTensors
        Every value is finite, at least :data:`MINIMUM_LOGPROB`.
    """
    num_rows = max(1, _SLICE_ELEMENTS // logits.shape[1])
    if len(logits) > num_rows:
        starts = range(0, len(logits), num_rows)
        parts = [_compute(logits[i : i + num_rows], token_ids[i : i + num_rows], num_top) for i in starts]
        return LogprobTensors(
            token_ids=token_ids,
            logprobs=torch.cat([part.logprobs for part in parts]),
            top_token_ids=torch.cat([part.top_token_ids for part in parts]),
            top_logprobs=torch.cat([part.top_logprobs for part in parts]),
        )
    return _compute(logits, token_ids, num_top)


def prompt_logprobs(logits: torch.Tensor, target_ids: torch.Tensor, num_top: int) -> list[SampledLogprob]:
    """Log-probabilities of a prompt's tokens.

    ``logits`` ``[T, V]`` float32; ``target_ids`` ``[T]`` int64, where target i is the token *after* the one whose
    logits stand in row i. The first token of a prompt has no log-probability.
    """
    return compute_logprobs(logits, target_ids, num_top).to_lists([num_top] * len(target_ids))


def _compute(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> LogprobTensors:
    normaliser = torch.logsumexp(logits, dim=1)
    # Looking costs a wait for the device, cleaning a pass over the logits: each where it is the cheaper one.
    if logits.device.type != "cpu" or not torch.isfinite(normaliser).all():
        logits = torch.nan_to_num(logits, nan=float("-inf"), neginf=float("-inf"))
        normaliser = torch.logsumexp(logits, dim=1)
        normaliser = torch.where(torch.isfinite(normaliser), normaliser, 0.0)
    top_logits, top_token_ids = torch.topk(logits, min(num_top, logits.shape[1]), dim=1)
    drawn = torch.gather(logits, 1, token_ids[:, None])[:, 0]
    return LogprobTensors(
        token_ids=token_ids,
        logprobs=(drawn - normaliser).clamp(MINIMUM_LOGPROB, 0.0),
        top_token_ids=top_token_ids,
        top_logprobs=(top_logits - normaliser[:, None]).clamp(MINIMUM_LOGPROB, 0.0),
    )

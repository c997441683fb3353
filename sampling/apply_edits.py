"""Everything that changes logits before the draw, in the one documented order.

Logit bias, scaling penalties, additive penalties, suppressed tokens (minimum of new tokens, bad words), then the masks
(grammar, allow-list). The masks win: where suppression leaves a row nothing, it gives way there.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import torch

from sampling.logit_edits import LogitEdits
from sampling.orchestrator import apply_compact_penalties

# Eight upper bounds for each value of a byte of the mask: +inf where the bit is one, -inf where it is zero.
_BOUNDS = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") == 1,
    np.float32(np.inf),
    np.float32(-np.inf),
).astype(np.float32)


def apply_edits(logits: torch.Tensor, edits: LogitEdits) -> None:
    """Apply all edits to ``logits`` ``[S, V]`` float32, contiguous, in place."""
    if edits.suppressions is not None:
        suppressions = edits.suppressions.relaxed(edits.vocab_mask, *logits.shape)
        edits = replace(edits, suppressions=suppressions)
    if logits.device.type == "cuda" and find_spec("triton") is not None:
        # Triton is absent where torch is a CPU build.
        from sampling.triton_edits import apply_edits_fused

        apply_edits_fused(logits, edits)
        return
    if edits.logit_bias is not None:
        bias = edits.logit_bias
        logits.view(-1)[bias.positions * logits.shape[1] + bias.token_ids] += bias.values
    for penalties in edits.penalties:
        apply_compact_penalties(logits, penalties)
    if edits.suppressions is not None:
        edits.suppressions.apply(logits)
    if edits.vocab_mask is not None:
        apply_mask(logits, edits.vocab_mask)


def apply_mask(logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
    """Set the logits of tokens whose bit is zero to -inf, in place; NaN stays NaN, so that a broken row is noticed."""
    if logits.device.type == "cpu":
        _apply_mask_cpu(logits, vocab_mask)
        return
    bits = torch.arange(32, device=logits.device, dtype=torch.int32)
    allowed = ((vocab_mask[:, :, None] >> bits) & 1).view(len(logits), -1)[:, : logits.shape[1]]
    logits.copy_(torch.minimum(logits, torch.where(allowed == 1, float("inf"), float("-inf"))))


def _apply_mask_cpu(logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
    values = logits.numpy()
    words = np.ascontiguousarray(vocab_mask.numpy())
    unconstrained = (words[:, : values.shape[1] // 32] == -1).all(axis=1)
    bounds = np.empty((words.shape[1] * 4, 8), np.float32)
    for row in range(len(values)):
        # One row at a time stays in a core's cache, which makes it several times faster than all rows at once.
        if unconstrained[row] and values.shape[1] % 32 == 0:
            continue
        np.take(_BOUNDS, words[row].view(np.uint8), axis=0, out=bounds, mode="clip")
        np.minimum(values[row], bounds.reshape(-1)[: values.shape[1]], out=values[row])

"""Applying a packed vocabulary mask to logits, in one pass."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

_BLOCK = 1024


def apply_vocab_mask(logits: torch.Tensor, vocab_mask: torch.Tensor, indices: torch.Tensor | None = None) -> None:
    """Set the logits of forbidden tokens to minus infinity, in place.

    Parameters
    ----------
    logits
        [B, V], floating point. Columns beyond the mask's width are forbidden.
    vocab_mask
        [R, W] int32, bit 1 = allowed; on the same device as ``logits``. R = B without ``indices``.
    indices
        [R] int64, unique: the logits row that each mask row belongs to; other rows stay as they are.

    Raises
    ------
    ValueError
        For another dtype, device or number of rows.
    """
    if vocab_mask.dtype != torch.int32 or vocab_mask.device != logits.device or logits.dim() != 2:
        raise ValueError("the vocabulary mask must be int32, on the logits' device, for logits of two dimensions")
    num_rows = logits.shape[0] if indices is None else indices.shape[0]
    if vocab_mask.shape[0] != num_rows:
        raise ValueError(f"{vocab_mask.shape[0]} mask rows for {num_rows} rows of logits")
    if num_rows == 0:
        return
    if logits.is_cuda:
        apply_vocab_mask_triton(logits, vocab_mask, indices)
    else:
        _apply_native(logits, vocab_mask, indices)


def _apply_native(logits: torch.Tensor, vocab_mask: torch.Tensor, indices: torch.Tensor | None) -> None:
    shifts = torch.arange(8, dtype=torch.uint8, device=vocab_mask.device)
    octets = vocab_mask.contiguous().view(torch.uint8)
    forbidden = ((octets.unsqueeze(-1) >> shifts) & 1 == 0).flatten(1)
    width = min(logits.shape[1], forbidden.shape[1])
    forbidden = torch.nn.functional.pad(forbidden[:, :width], (0, logits.shape[1] - width), value=True)
    if indices is None:
        logits.masked_fill_(forbidden, float("-inf"))
    else:
        logits[indices] = logits[indices].masked_fill(forbidden, float("-inf"))


def apply_vocab_mask_triton(logits: torch.Tensor, vocab_mask: torch.Tensor, indices: torch.Tensor | None) -> None:
    """:func:`apply_vocab_mask` in one Triton kernel; also runs in Triton's interpreter on CPU tensors."""
    num_rows, num_words = vocab_mask.shape
    vocab_size = logits.shape[1]
    grid = (num_rows, -(-vocab_size // _BLOCK))
    _triton_kernel()[grid](
        logits,
        vocab_mask,
        vocab_mask if indices is None else indices,
        logits.stride(0),
        vocab_mask.stride(0),
        vocab_size,
        num_words,
        HAS_INDICES=indices is not None,
        BLOCK=_BLOCK,
    )


@lru_cache(maxsize=1)
def _triton_kernel() -> Any:
    # Triton is a dependency of torch's CUDA builds only, so that it is imported where it is used.
    from constrained.mask_kernel_triton import apply_vocab_mask_kernel

    return apply_vocab_mask_kernel

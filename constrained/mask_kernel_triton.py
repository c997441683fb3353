"""The Triton kernel behind :func:`constrained.mask_kernels.apply_vocab_mask`."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc,import-untyped,unused-ignore"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def apply_vocab_mask_kernel(
    logits,
    vocab_mask,
    indices,
    logits_stride,
    mask_stride,
    vocab_size,
    num_words,
    HAS_INDICES: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """One program: one row of the mask, ``BLOCK`` tokens. Stores only where a token is forbidden."""
    mask_row = tl.program_id(0)
    row = mask_row.to(tl.int64)
    if HAS_INDICES:
        row = tl.load(indices + mask_row).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_vocab = token < vocab_size
    word = token // 32
    words = tl.load(
        vocab_mask + mask_row.to(tl.int64) * mask_stride + word, mask=in_vocab & (word < num_words), other=0
    )
    is_forbidden = ((words >> (token % 32)) & 1) == 0
    tl.store(logits + row * logits_stride + token, float("-inf"), mask=in_vocab & is_forbidden)

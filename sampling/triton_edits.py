"""All logit edits in one pass over the logits: the CUDA form of :func:`sampling.apply_edits.apply_edits`.

Each program owns one row and one tile of the vocabulary, and applies to it, in the documented order, those entries of
the row's short lists that fall into the tile, then the mask words of the tile. Owning the tile is what makes the order
hold without atomics.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

from sampling.logit_edits import LogitEdits

_TILE = 4096  # tokens of one program
_ENTRIES = 512  # list entries looked at together


def apply_edits_fused(logits: torch.Tensor, edits: LogitEdits) -> None:
    """Apply all edits to ``logits`` ``[S, V]`` float32, contiguous, in place; suppressions have given way already."""
    num_rows, vocab_size = logits.shape
    rows = torch.arange(num_rows + 1, device=logits.device)
    nothing = torch.zeros(1, dtype=torch.int32, device=logits.device)
    bias: tuple[torch.Tensor, ...] = (nothing, nothing, nothing)
    if edits.logit_bias is not None:
        listed = edits.logit_bias
        bias = (torch.searchsorted(listed.positions, rows), listed.token_ids, listed.values)
    penalties: tuple[torch.Tensor, ...] = (nothing, nothing, nothing, nothing)
    num_entries, scales, adds = 0, False, False
    if edits.penalties:
        scales, adds = edits.penalties[0].scaling is not None, edits.penalties[0].additive is not None
        positions = torch.cat([part.positions for part in edits.penalties])
        row_of = torch.full((num_rows,), -1, dtype=torch.int64, device=logits.device)
        row_of[positions] = torch.arange(len(positions), device=logits.device)
        token_ids = torch.cat([part.token_ids for part in edits.penalties])
        num_entries = token_ids.shape[1]
        scaling = torch.cat([part.scaling for part in edits.penalties if part.scaling is not None] or [nothing])
        additive = torch.cat([part.additive for part in edits.penalties if part.additive is not None] or [nothing])
        penalties = (row_of, token_ids, scaling, additive)
    suppressed: tuple[torch.Tensor, ...] = (nothing, nothing, nothing)
    if edits.suppressions is not None:
        order = torch.argsort(edits.suppressions.positions, stable=True)
        offsets = torch.searchsorted(edits.suppressions.positions[order], rows)
        active = edits.suppressions.active[order].to(torch.int8)
        suppressed = (offsets, edits.suppressions.token_ids[order], active)
    mask = edits.vocab_mask if edits.vocab_mask is not None else nothing[:, None]
    kernel: Any = _edit_kernel
    kernel[(num_rows, triton.cdiv(vocab_size, _TILE))](
        logits,
        vocab_size,
        *bias,
        *penalties,
        num_entries,
        *suppressed,
        mask,
        mask.stride(0),
        HAS_BIAS=edits.logit_bias is not None,
        HAS_PENALTIES=num_entries > 0,
        SCALES=scales,
        ADDS=adds,
        HAS_SUPPRESSIONS=edits.suppressions is not None,
        HAS_MASK=edits.vocab_mask is not None,
        TILE=_TILE,
        ENTRIES=_ENTRIES,
    )


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _edit_kernel(  # type: ignore[no-untyped-def]
    logits,
    vocab_size,
    bias_offsets,
    bias_token_ids,
    bias_values,
    penalty_rows,
    penalty_token_ids,
    penalty_scaling,
    penalty_additive,
    num_entries,
    suppressed_offsets,
    suppressed_token_ids,
    suppressed_active,
    mask,
    mask_stride,
    HAS_BIAS: tl.constexpr,  # noqa: N803
    HAS_PENALTIES: tl.constexpr,  # noqa: N803
    SCALES: tl.constexpr,  # noqa: N803
    ADDS: tl.constexpr,  # noqa: N803
    HAS_SUPPRESSIONS: tl.constexpr,  # noqa: N803
    HAS_MASK: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
    ENTRIES: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1) * TILE
    end = tl.minimum(begin + TILE, vocab_size)
    own = logits + row * vocab_size
    lane = tl.arange(0, ENTRIES)
    if HAS_BIAS:
        last = tl.load(bias_offsets + row + 1)
        for first in range(tl.load(bias_offsets + row), last, ENTRIES):
            listed = first + lane < last
            token_ids = tl.load(bias_token_ids + first + lane, mask=listed, other=-1)
            inside = (token_ids >= begin) & (token_ids < end)
            values = tl.load(own + token_ids, mask=inside, other=0.0)
            bias = tl.load(bias_values + first + lane, mask=inside, other=0.0)
            tl.store(own + token_ids, values + bias, mask=inside)
        tl.debug_barrier()
    if HAS_PENALTIES:
        penalty_row = tl.load(penalty_rows + row)
        if penalty_row >= 0:
            base = penalty_row * num_entries
            for first in range(0, num_entries, ENTRIES):
                listed = first + lane < num_entries
                token_ids = tl.load(penalty_token_ids + base + first + lane, mask=listed, other=-1)
                inside = (token_ids >= begin) & (token_ids < end)
                values = tl.load(own + token_ids, mask=inside, other=0.0)
                if SCALES:
                    scaling = tl.load(penalty_scaling + base + first + lane, mask=inside, other=1.0)
                    values = tl.where(values > 0, tl.div_rn(values, scaling), values * scaling)
                if ADDS:
                    values += tl.load(penalty_additive + base + first + lane, mask=inside, other=0.0)
                tl.store(own + token_ids, values, mask=inside)
        tl.debug_barrier()
    if HAS_SUPPRESSIONS:
        last = tl.load(suppressed_offsets + row + 1)
        for first in range(tl.load(suppressed_offsets + row), last, ENTRIES):
            listed = first + lane < last
            token_ids = tl.load(suppressed_token_ids + first + lane, mask=listed, other=-1)
            active = tl.load(suppressed_active + first + lane, mask=listed, other=0) != 0
            inside = active & (token_ids >= begin) & (token_ids < end)
            values = tl.load(own + token_ids, mask=inside, other=0.0)
            tl.store(own + token_ids, tl.where(values != values, values, float("-inf")), mask=inside)
        tl.debug_barrier()
    if HAS_MASK:
        token_ids = begin + tl.arange(0, TILE)
        inside = token_ids < end
        words = tl.load(mask + row * mask_stride + token_ids // 32, mask=inside, other=-1)
        masked = inside & (((words >> (token_ids % 32)) & 1) == 0)
        values = tl.load(own + token_ids, mask=masked, other=0.0)
        # A NaN stays, so that a broken row is noticed.
        tl.store(own + token_ids, tl.where(values != values, values, float("-inf")), mask=masked)

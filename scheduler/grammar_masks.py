"""The vocabulary mask of one step: what each constrained row may draw at each of its positions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache

import torch

from scheduler.interfaces import GrammarObject
from scheduler.plan import PlanRow

logger = logging.getLogger(__name__)


def fill_step_mask(rows: Sequence[PlanRow], vocab_size: int) -> tuple[torch.Tensor | None, dict[int, str]]:
    """Mask for the draws of ``rows``, and the rows whose grammar failed, with why.

    Returns
    -------
    tuple
        ``[S, ceil(V / 32)]`` int32 in host memory, bit 1 = allowed, S = draws of all rows; ``None`` when no row is
        constrained. A row whose grammar failed is left open: its result must be thrown away.
    """
    if all(row.request.grammar is None for row in rows):
        return None, {}
    num_draws = sum(1 + len(row.draft_token_ids) for row in rows)
    mask = _all_allowed(vocab_size).repeat(num_draws, 1)
    errors: dict[int, str] = {}
    start = 0
    for index, row in enumerate(rows):
        grammar = row.request.grammar
        if grammar is not None:
            try:
                _fill_along_draft(grammar, mask, start, row.draft_token_ids)
            except Exception as error:
                # The grammar library's trouble with one request is not the others'.
                logger.exception("the grammar of request %s failed", row.request.group.request_id)
                errors[index] = f"The grammar failed while the answer was generated: {error}"
        start += 1 + len(row.draft_token_ids)
    return mask, errors


def _fill_along_draft(grammar: GrammarObject, mask: torch.Tensor, start: int, draft_token_ids: Sequence[int]) -> None:
    """Positions behind a draft that is refused or ends the form stay open: what is drawn there is never kept."""
    num_accepted = 0
    try:
        grammar.fill_vocab_mask(mask, start)
        for offset, token_id in enumerate(draft_token_ids, start=1):
            try:
                grammar.accept_token(token_id)
            except ValueError:
                break
            num_accepted += 1
            if grammar.is_terminated():
                break
            grammar.fill_vocab_mask(mask, start + offset)
    finally:
        grammar.rollback(num_accepted)


@lru_cache(maxsize=4)
def _all_allowed(vocab_size: int) -> torch.Tensor:
    """``[1, ceil(V / 32)]`` int32, bits beyond the vocabulary zero."""
    words = torch.full((1, (vocab_size + 31) // 32), -1, dtype=torch.int32)
    if vocab_size % 32:
        words[0, -1] = (1 << (vocab_size % 32)) - 1
    return words

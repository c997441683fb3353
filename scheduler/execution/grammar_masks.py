"""The vocabulary mask of one step: what each constrained row may draw at each of its positions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from constrained.engines.base import BaseGrammarObject
from constrained.errors import reraise_exit
from constrained.masks.slots import GrammarMasks
from scheduler.planning.plan import PlanRow

logger = logging.getLogger(__name__)

_NO_LEGAL_TOKEN = "No token of the vocabulary continues this constrained answer."


@dataclass(frozen=True, slots=True)
class _MaskedRow:
    index: int
    row: PlanRow
    grammar: BaseGrammarObject
    start: int
    """Mask row of its first draw."""


def fill_step_mask(masks: GrammarMasks, rows: Sequence[PlanRow]) -> dict[int, str]:
    """Fill the next set of ``masks`` for the draws of ``rows``, in order.

    Returns
    -------
    dict
        Why a row cannot go on, by index in ``rows``: its result must be thrown away.
    """
    masks.begin()
    undrafted: list[_MaskedRow] = []
    errors: dict[int, str] = {}
    start = 0
    for index, row in enumerate(rows):
        grammar = row.request.grammar
        if grammar is not None:
            masked = _MaskedRow(index, row, grammar, start)
            if row.draft_token_ids:
                _fill_alone(masks, masked, errors)
            else:
                undrafted.append(masked)
        start += 1 + len(row.draft_token_ids)
    _fill_together(masks, undrafted, errors)
    return errors


def _fill_together(masks: GrammarMasks, rows: Sequence[_MaskedRow], errors: dict[int, str]) -> None:
    if not rows:
        return
    try:
        dead = set(masks.fill([row.grammar for row in rows], [row.start for row in rows]))
    except BaseException as error:
        reraise_exit(error)
        logger.warning("the masks of a step could not be filled together; looking for the request at fault")
        for row in rows:
            _fill_alone(masks, row, errors)
        return
    errors.update({row.index: _NO_LEGAL_TOKEN for row in rows if row.start in dead})


def _fill_alone(masks: GrammarMasks, row: _MaskedRow, errors: dict[int, str]) -> None:
    """Rows behind a draft that is refused or ends the form stay open: what is drawn there is never kept."""
    try:
        masks.fill_drafts(row.grammar, row.start, row.row.draft_token_ids)
    except BaseException as error:
        reraise_exit(error)
        # A grammar library's trouble with one request is not the others'.
        logger.exception("the grammar of request %s failed", row.row.request.group.request_id)
        errors[row.index] = f"The grammar failed while the answer was generated: {error}"

"""Vocabulary masks of a step: rows allocated once, filled by many threads where that pays."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from constrained.engines.base import BaseGrammarObject
from constrained.environment import GrammarEnvironment
from constrained.errors import NoLegalTokenError
from constrained.masks.fill import fill_rows
from constrained.stats import GrammarMetrics


class GrammarMasks:
    """Two sets of ``max_slots * (1 + max_draft_tokens)`` mask rows, used in turn.

    A step's mask may still be on its way to the device while the next step's is filled, so that a set is reused only
    every second step. Pinned where the device is CUDA.

    Parameters
    ----------
    environment
        Width and configuration.
    max_slots
        Most choices of a step.
    device
        Where the logits are.
    """

    def __init__(
        self,
        environment: GrammarEnvironment,
        max_slots: int,
        device: torch.device | str = "cpu",
        metrics: GrammarMetrics | None = None,
    ) -> None:
        self.device = torch.device(device)
        self._environment = environment
        self._metrics = metrics or GrammarMetrics()
        self.max_rows = max_slots * (1 + environment.config.max_draft_tokens)
        self._sets = [
            BaseGrammarObject.allocate_vocab_mask(environment.vocab_size, self.max_rows, self.device) for _ in range(2)
        ]
        self._full_row = torch.from_numpy(environment.full_words.copy())
        self._turn = 0
        # Rows that something wrote to: the others still allow everything and need no reset.
        self._dirty: list[set[int]] = [set(), set()]

    def begin(self) -> None:
        """Turn to the other set, every row of which allows everything again."""
        self._turn = 1 - self._turn
        dirty = self._dirty[self._turn]
        if dirty:
            self._sets[self._turn][sorted(dirty)] = self._full_row
            dirty.clear()

    def fill(self, grammars: Sequence[BaseGrammarObject], rows: Sequence[int]) -> list[int]:
        """Fill rows of this turn's set.

        Parameters
        ----------
        grammars, rows
            Objects and the row of each, below ``max_rows`` and distinct.

        Returns
        -------
        dead
            Rows that allow no token at all: their requests must end with an error before anything is sampled.
        """
        started = time.perf_counter()
        mask = self._sets[self._turn]
        pairs = [
            (g, r) for grammar, r in zip(grammars, rows, strict=True) if (g := grammar.active_grammar()) is not None
        ]
        self._dirty[self._turn].update(row for _, row in pairs)
        fill_rows([g for g, _ in pairs], mask, [row for _, row in pairs])
        words = mask.numpy()
        dead = [row for _, row in pairs if not words[row].any()]
        self._metrics.add("grammar_mask_rows_total", len(pairs))
        self._metrics.add("grammar_mask_fill_seconds_total", time.perf_counter() - started)
        return dead

    def fill_drafts(self, grammar: BaseGrammarObject, row: int, draft_token_ids: Sequence[int]) -> int:
        """Fill the rows of a choice that drafts: ``row`` for the next token, ``row + j`` behind ``j`` drafts.

        The grammar's state is as before afterwards.

        Returns
        -------
        num_legal
            Drafts that the grammar allows; the row behind the last legal one is filled unless the form ends there,
            later ones are not.

        Raises
        ------
        NoLegalTokenError
            When the very next position allows no token.
        """
        if self.fill([grammar], [row]):
            raise NoLegalTokenError("no token of the vocabulary continues this constrained answer")
        accepted = 0
        try:
            for token_id in draft_token_ids:
                if grammar.is_terminated() or not self.allows(row + accepted, token_id):
                    break
                grammar.accept_token(token_id)
                accepted += 1
                if grammar.is_terminated():
                    break  # a row of zeros would fail the whole request, for a token that nobody keeps
                if self.fill([grammar], [row + accepted]):
                    accepted -= 1
                    grammar.rollback(1)
                    break
        finally:
            grammar.rollback(accepted)
        return accepted

    def allows(self, row: int, token_id: int) -> bool:
        """Whether this turn's row has the token's bit."""
        if not 0 <= token_id < self._environment.vocab_size:
            return False
        return bool((int(self._sets[self._turn][row, token_id // 32]) >> (token_id % 32)) & 1)

    def rows(self, num_rows: int) -> torch.Tensor:
        """The first rows of this turn's set on the device. [num_rows, ceil(V / 32)] int32"""
        return BaseGrammarObject.move_vocab_mask(self._sets[self._turn][:num_rows], self.device)

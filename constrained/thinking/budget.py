"""A bound on thinking for a request that asks for no form: nothing is constrained but the end of a spent budget."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import Self

from constrained.engines.base import BaseGrammarObject
from constrained.environment import GrammarEnvironment
from constrained.spec import ReasoningSpec
from constrained.thinking.boundary import ThinkEndMarker


class ThinkingBudget(BaseGrammarObject):
    """Forces the end-of-thinking marker once the budget is spent, and allows everything before and after.

    Raises
    ------
    ValueError
        The marker has no tokens, or some outside the vocabulary.
    """

    def __init__(self, environment: GrammarEnvironment, reasoning: ReasoningSpec) -> None:
        super().__init__(environment)
        self.reasoning = reasoning
        self._marker = ThinkEndMarker(environment, reasoning.think_end_ids)
        self._states: list[int | None] = [0 if reasoning.is_thinking else None]
        """The marker's state before and after every token; ``None`` behind the end of thinking."""

    def accept_token(self, token_id: int) -> None:
        state = self._states[-1]
        if state is not None:
            following, behind = self._marker.advance(state, token_id)
            state = following if behind is None else None
        self._states.append(state)
        self._num_accepted += 1
        self.current_token = token_id

    def rollback(self, k: int) -> None:
        if not 0 <= k <= self._num_accepted:
            raise ValueError(f"cannot roll back {k} of {self._num_accepted} tokens")
        if k:
            del self._states[-k:]
            self._num_accepted -= k
            self.current_token = None

    def is_terminated(self) -> bool:
        return False

    def is_accepting(self) -> bool:
        return True

    def fill_vocab_mask(self, vocab_mask: torch.Tensor, idx: int) -> None:
        state = self._states[-1]
        if state is not None and self._is_spent():
            words: npt.NDArray[np.int32] = vocab_mask.numpy()[idx]
            words[:] = self._marker.forced_words(state)

    def active_grammar(self) -> BaseGrammarObject | None:
        return self if self._states[-1] is not None and self._is_spent() else None

    def forced_bytes(self) -> bytes:
        return b""

    def try_jump_forward(self, tokenizer: Any = None) -> None:
        return None

    def _is_spent(self) -> bool:
        return self.reasoning.budget is not None and self._num_accepted >= self.reasoning.budget

    def _copy(self) -> Self:
        return type(self)(self.environment, self.reasoning)

    def _accept(self, token_id: int) -> bool:
        return True

    def _rollback(self, k: int) -> None:
        """Kept by :meth:`rollback`."""

    def _is_accepting(self) -> bool:
        return True

    def _can_extend(self) -> bool:
        return True

    def _fill(self, words: npt.NDArray[np.int32], row: int) -> None:
        """Kept by :meth:`fill_vocab_mask`."""

    def _forced_bytes(self) -> bytes:
        return b""

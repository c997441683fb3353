"""Constrain only what comes after the thinking: a wrapper over any backend.

A wrapper instead of a change to each backend, and a counter instead of a flag: with the number of tokens since the end
of thinking, roll-back knows exactly how many of them the inner grammar has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import Self

from constrained.engines.base import BaseGrammarObject
from constrained.environment import ids_to_words
from constrained.errors import TokenRejectedError
from constrained.spec import ReasoningSpec
from constrained.thinking.boundary import ThinkEndMarker

THINKING = -1


class ReasonerGrammarObject(BaseGrammarObject):
    """An inner grammar that begins behind the end-of-thinking marker.

    While thinking, the mask stays as it is, but for three things: a spent budget forces the marker; the answer cannot
    end before it has begun; and a token that holds the marker's end together with text of the answer is forbidden,
    since that text would escape the grammar.
    """

    def __init__(self, grammar: BaseGrammarObject, reasoning: ReasoningSpec) -> None:
        self.grammar = grammar
        self.reasoning = reasoning
        self.think_end_ids = reasoning.think_end_ids
        self._marker = ThinkEndMarker(grammar.environment, reasoning.think_end_ids)
        self.tokens_after_think_end = THINKING if reasoning.is_thinking else 0
        """-1 while thinking, 0 when it has just ended, otherwise the tokens the inner grammar has accepted."""
        self._marker_states = [0]
        """The marker's state before and after every thinking token."""
        stop_token_ids = grammar.stop_token_ids
        super().__init__(grammar.environment)
        self.set_stop_token_ids(sorted(stop_token_ids))
        self.grammar_stats = grammar.grammar_stats

    @property
    def think_end_id(self) -> int:
        """The marker's last token."""
        return self.think_end_ids[-1]

    @property
    def is_thinking(self) -> bool:
        return self.tokens_after_think_end == THINKING

    @property
    def num_thinking_tokens(self) -> int:
        """Tokens accepted so far that belong to the thinking, its marker included."""
        return len(self._marker_states) - 1

    def maybe_init_reasoning(self, reasoning: bool) -> None:
        """Start thinking or not, before the first token."""
        if self._num_accepted:
            raise ValueError("whether a request thinks is settled before its first token")
        self.tokens_after_think_end = THINKING if reasoning else 0

    def set_stop_token_ids(self, token_ids: Sequence[int]) -> None:
        self.grammar.set_stop_token_ids(token_ids)
        self.stop_token_ids = self.grammar.stop_token_ids
        endings = sorted(self.stop_token_ids - set(self.think_end_ids))
        self._unstopped_words = ~ids_to_words(endings, self.environment.num_mask_words)

    def accept_token(self, token_id: int) -> None:
        # Accepting comes before the transition, so that the marker never reaches the inner grammar.
        if not self.is_thinking:
            self.grammar.accept_token(token_id)
        elif token_id in self.stop_token_ids and token_id not in self.think_end_ids:
            raise TokenRejectedError("the answer ended inside its thinking, before the constrained part began")
        self.transfer_state(token_id)
        self._num_accepted += 1
        self.current_token = token_id

    def transfer_state(self, token_id: int) -> int:
        """Count one token: thinking, its end, or the answer. Returns the new ``tokens_after_think_end``."""
        if not self.is_thinking:
            self.tokens_after_think_end += 1
            return self.tokens_after_think_end
        state, behind = self._marker.advance(self._marker_states[-1], token_id)
        if behind is not None:
            if behind.strip():
                raise TokenRejectedError(f"token {token_id} joins the end of thinking and the answer")
            self.tokens_after_think_end = 0
        self._marker_states.append(state)
        return self.tokens_after_think_end

    def rollback(self, k: int) -> None:
        if not 0 <= k <= self._num_accepted:
            raise ValueError(f"cannot roll back {k} of {self._num_accepted} tokens")
        inner = min(k, max(self.tokens_after_think_end, 0))
        if inner:
            self.grammar.rollback(inner)
        for _ in range(k):
            self.rollback_state()
        self._num_accepted -= k
        self.current_token = None

    def rollback_state(self) -> int:
        """Take one token's count back. Returns the new ``tokens_after_think_end``."""
        if self.tokens_after_think_end > 0:
            self.tokens_after_think_end -= 1
        else:
            self._marker_states.pop()
            self.tokens_after_think_end = THINKING
        return self.tokens_after_think_end

    def is_terminated(self) -> bool:
        return not self.is_thinking and self.grammar.is_terminated()

    def is_accepting(self) -> bool:
        return not self.is_thinking and self.grammar.is_accepting()

    def copy(self) -> BaseGrammarObject:
        return self._copy()

    @property
    def size_bytes(self) -> int:
        return self.grammar.size_bytes

    def fill_vocab_mask(self, vocab_mask: torch.Tensor, idx: int) -> None:
        if not self.is_thinking:
            self.grammar.fill_vocab_mask(vocab_mask, idx)
            return
        words: npt.NDArray[np.int32] = vocab_mask.numpy()[idx]
        if self._must_end_thinking():
            words[:] = self._marker.forced_words(self._marker_states[-1])
            return
        np.bitwise_and(words, self._unstopped_words, out=words)
        if (forbidden := self._marker.forbidden_words(self._marker_states[-1])) is not None:
            np.bitwise_and(words, ~forbidden, out=words)

    def active_grammar(self) -> BaseGrammarObject | None:
        return self if self.is_thinking else self.grammar.active_grammar()

    def _must_end_thinking(self) -> bool:
        return self.reasoning.budget is not None and self.num_thinking_tokens >= self.reasoning.budget

    def forced_bytes(self) -> bytes:
        return b"" if self.is_thinking else self.grammar.forced_bytes()

    def try_jump_forward(self, tokenizer: Any = None) -> tuple[list[int], bytes] | None:
        return None if self.is_thinking else self.grammar.try_jump_forward(tokenizer)

    def _copy(self) -> Self:
        return type(self)(self.grammar.copy(), self.reasoning)

    def _accept(self, token_id: int) -> bool:
        return self.grammar._accept(token_id)

    def _rollback(self, k: int) -> None:
        self.grammar._rollback(k)

    def _is_accepting(self) -> bool:
        return self.grammar._is_accepting()

    def _can_extend(self) -> bool:
        return self.grammar._can_extend()

    def _fill(self, words: npt.NDArray[np.int32], row: int) -> None:
        self.grammar._fill(words, row)

    def _forced_bytes(self) -> bytes:
        return self.grammar._forced_bytes()

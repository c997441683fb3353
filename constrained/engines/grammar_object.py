"""A request's live state in a grammar.

Public names are those of SGLang's grammar layer. A backend implements the underscored primitives; what holds for all of
them (the request's own stop set, no special token inside a form, roll-back over the end) is written once, here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import Self

from constrained.environment import GrammarEnvironment, ids_to_words
from constrained.errors import GrammarError, TokenRejectedError
from constrained.stats import GrammarStats

JumpForwardHelper = tuple[list[int], bytes]
"""Token ids that the grammar forces (may be empty) and the bytes that it forces."""


class BaseGrammarObject(ABC):
    """One choice's live state in a grammar.

    A compiled grammar is an object in its start state, never used itself: every choice works on a :meth:`copy`.
    """

    def __init__(self, environment: GrammarEnvironment) -> None:
        self.environment = environment
        self.finished = False
        """Set by the scheduler when the choice is over."""
        self.grammar_stats: GrammarStats | None = None
        self.current_token: int | None = None
        """The token accepted last."""
        self._num_accepted = 0
        self._is_stopped = False
        self._is_terminated: bool | None = None
        self.set_stop_token_ids(environment.eos_token_ids)

    def set_stop_token_ids(self, token_ids: Sequence[int]) -> None:
        """The request's own stop set: legal exactly where the text is complete, nowhere else.

        An id of ordinary text loses its meaning as text: accepting it inside the form would end the answer there.
        """
        ids = frozenset(token_ids)
        if not ids or not all(0 <= i < self.environment.vocab_size for i in ids):
            raise GrammarError(f"stop token ids must lie in 0..{self.environment.vocab_size - 1}, not {sorted(ids)}")
        self.stop_token_ids = ids
        bits = ids_to_words(sorted(ids), self.environment.num_mask_words)
        self._stop_words = [(int(word), bits[word]) for word in np.flatnonzero(bits)]
        matchable = self.environment.matchable_words
        self._content_words = matchable & ~bits if (matchable & bits).any() else matchable

    def accept_token(self, token_id: int) -> None:
        """Advance by one token.

        Raises
        ------
        TokenRejectedError
            When the mask of this state does not have the token's bit.
        """
        if self._is_stopped:
            raise TokenRejectedError(f"token {token_id} after the end of the constrained answer")
        if token_id in self.stop_token_ids:
            if not self._is_accepting():
                raise TokenRejectedError(f"stop token {token_id} before the constrained answer is complete")
            self._is_stopped = True
        elif token_id in self.environment.unmatchable_ids or not self._accept(token_id):
            raise TokenRejectedError(f"token {token_id} does not fit the grammar")
        self._num_accepted += 1
        self._is_terminated = None
        self.current_token = token_id

    def rollback(self, k: int) -> None:
        """Take the last ``k`` accepted tokens back."""
        if not 0 <= k <= self._num_accepted:
            raise ValueError(f"cannot roll back {k} of {self._num_accepted} tokens")
        if k == 0:
            return
        inner = k - self._is_stopped
        if inner:
            self._rollback(inner)
        self._is_stopped = False
        self._is_terminated = None
        self._num_accepted -= k
        self.current_token = None

    def is_terminated(self) -> bool:
        """Whether the answer is over: a stop token was accepted, or the text is complete and nothing can extend it."""
        if self._is_terminated is None:
            self._is_terminated = self._is_stopped or (self._is_accepting() and not self._can_extend())
        return self._is_terminated

    def is_accepting(self) -> bool:
        """Whether the text so far is a complete answer."""
        return self._is_stopped or self._is_accepting()

    @property
    def is_stopped(self) -> bool:
        """Whether a stop token was accepted."""
        return self._is_stopped

    def copy(self) -> BaseGrammarObject:
        """The same grammar and stop set in its start state, sharing everything immutable."""
        fresh = self._copy()
        fresh.stop_token_ids = self.stop_token_ids
        fresh._stop_words = self._stop_words
        fresh._content_words = self._content_words
        return fresh

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the compiled grammar, shared by its copies."""
        return 0

    @property
    def is_spent(self) -> bool:
        """Whether something its copies share is broken, so that the specification must be compiled again."""
        return False

    # masks: int32 words, bit 1 = allowed, zero beyond the vocabulary

    @staticmethod
    def allocate_vocab_mask(vocab_size: int, batch_size: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """A mask that allows everything. [batch_size, ceil(vocab_size / 32)] int32, in host memory

        Pinned where ``device`` is CUDA, so that :meth:`move_vocab_mask` does not wait.
        """
        row = torch.from_numpy(ids_to_words(range(vocab_size), (vocab_size + 31) // 32).copy())
        mask = row.repeat(batch_size, 1)
        return mask.pin_memory() if torch.device(device).type == "cuda" else mask

    def fill_vocab_mask(self, vocab_mask: torch.Tensor, idx: int) -> None:
        """Write the mask of this state to one row of a contiguous host mask. [.., ceil(V / 32)] int32"""
        words: npt.NDArray[np.int32] = vocab_mask.numpy()
        if not self._is_stopped:
            self._fill(words, idx)
        self.finish_row(words[idx])

    @staticmethod
    def fill_vocab_mask_batched(
        grammars: Sequence[BaseGrammarObject], vocab_mask: torch.Tensor, rows: Sequence[int]
    ) -> None:
        """:meth:`fill_vocab_mask` for many objects, of any mixture of backends; in parallel where that pays."""
        from constrained.masks.fill import fill_rows

        fill_rows(grammars, vocab_mask, rows)

    @staticmethod
    def move_vocab_mask(vocab_mask: torch.Tensor, device: torch.device | str) -> torch.Tensor:
        """The mask on ``device``, copied without waiting."""
        return vocab_mask.to(device, non_blocking=True)

    @staticmethod
    def apply_vocab_mask(logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
        """Set what the mask forbids to minus infinity, in place. logits [B, V], vocab_mask [B, ceil(V / 32)] int32

        Serving does not call this: :mod:`sampling.apply_edits` applies masks together with the other logit edits.
        """
        bits = torch.arange(32, dtype=torch.int32, device=vocab_mask.device)
        forbidden = ((vocab_mask[:, :, None] >> bits) & 1 == 0).flatten(1)
        logits.masked_fill_(forbidden[:, : logits.shape[1]], float("-inf"))

    def active_grammar(self) -> BaseGrammarObject | None:
        """What constrains the next token: this object, an inner one, or ``None`` where everything is allowed."""
        return self

    def finish_row(self, words: npt.NDArray[np.int32]) -> None:
        """What holds for every backend, applied to a row that an engine has just filled."""
        if self._is_stopped:
            words.fill(0)
        else:
            np.bitwise_and(words, self._content_words, out=words)
            if not self._is_accepting():
                return
        for word, bits in self._stop_words:
            words[word] |= bits

    # reasoning

    def maybe_init_reasoning(self, reasoning: bool) -> None:  # noqa: B027
        """Tell the object whether the prompt leaves a thinking part open. Only a reasoner's object listens."""

    # jump-forward

    def forced_bytes(self) -> bytes:
        """The bytes that every continuation begins with; empty where there is a choice, or the text may end."""
        if self._is_stopped or self._is_accepting():
            return b""
        return self._forced_bytes()

    def try_jump_forward(self, tokenizer: Any = None) -> JumpForwardHelper | None:
        """What the grammar forces next, or ``None`` where it leaves a choice.

        Parameters
        ----------
        tokenizer
            Something with ``encode(text, add_special_tokens=False).ids`` (a ``tokenizers.Tokenizer``), to spell the
            forced text in tokens; without one the list of ids is empty and the caller retokenises.
        """
        forced = self.forced_bytes()
        if not forced:
            return None
        token_ids: list[int] = []
        text = complete_utf8(forced)
        if tokenizer is not None and text:
            token_ids = list(tokenizer.encode(text, add_special_tokens=False).ids)
        return token_ids, forced

    def jump_forward_str_state(self, helper: JumpForwardHelper) -> tuple[str, int]:
        """The forced text, cut at its last whole character, and its length in bytes."""
        text = complete_utf8(helper[1])
        return text, len(text.encode())

    def jump_and_retokenize(self, old_output_ids: list[int], new_output_ids: list[int], next_state: int) -> None:
        """Move from one spelling of the output to another: roll back to where they part, accept the rest.

        ``next_state`` is unused: the state follows from the tokens.
        """
        common = 0
        for old, new in zip(old_output_ids, new_output_ids, strict=False):
            if old != new:
                break
            common += 1
        self.rollback(len(old_output_ids) - common)
        for token_id in new_output_ids[common:]:
            self.accept_token(token_id)

    # what a backend implements

    @abstractmethod
    def _accept(self, token_id: int) -> bool:
        """Advance by a token of text; ``False``, with the state unchanged, where it does not fit."""

    @abstractmethod
    def _rollback(self, k: int) -> None:
        """Take ``k`` tokens back, at least one, all of them accepted by :meth:`_accept`."""

    @abstractmethod
    def _is_accepting(self) -> bool:
        """Whether the text so far is complete."""

    @abstractmethod
    def _can_extend(self) -> bool:
        """In an accepting state: whether any token may follow."""

    @abstractmethod
    def _fill(self, words: npt.NDArray[np.int32], row: int) -> None:
        """Write one mask row; bits of stop and special tokens and beyond the vocabulary may be anything."""

    @abstractmethod
    def _forced_bytes(self) -> bytes: ...

    @abstractmethod
    def _copy(self) -> Self: ...


class InvalidGrammarObject(BaseGrammarObject):
    """Carries an error to the request; nothing else may be done with it."""

    def __init__(self, environment: GrammarEnvironment, error: GrammarError) -> None:
        super().__init__(environment)
        self.error = error

    @property
    def error_message(self) -> str:
        return self.error.message

    def _accept(self, token_id: int) -> bool:
        raise self.error

    def _rollback(self, k: int) -> None:
        raise self.error

    def _is_accepting(self) -> bool:
        raise self.error

    def _can_extend(self) -> bool:
        raise self.error

    def _fill(self, words: npt.NDArray[np.int32], row: int) -> None:
        raise self.error

    def _forced_bytes(self) -> bytes:
        raise self.error

    def _copy(self) -> Self:
        return type(self)(self.environment, self.error)


def complete_utf8(data: bytes) -> str:
    """The longest prefix of ``data`` that is whole UTF-8 characters."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()

"""A bound on thinking that stands inside the grammar: an answer of messages, some of which are thinking."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from constrained.engines.base import BaseGrammarObject
from constrained.environment import GrammarEnvironment, ids_to_words
from constrained.spec import ReasoningSpec
from constrained.thinking.boundary import Marker
from constrained.thinking.reasoner import ReasonerGrammarObject

_MAX_MISSING_BYTES = 3
"""Most bytes that the last character of a text can lack in UTF-8."""


@dataclass(frozen=True, slots=True)
class _State:
    num_matched: int = 0
    """Bytes of the start marker that the text ends with."""
    is_inside: bool = False
    num_tokens: int = 0
    """Thinking tokens of the whole answer so far, without markers."""


class ThinkingPartsObject(ReasonerGrammarObject):
    """The grammar sees every token; of thinking it allows no more than the budget, all parts of it together.

    A spent budget ends the part with its end token, and no other part begins: behind the first token of the start
    marker, the byte by which the marker goes on is forbidden. Other parts may share that token, but not that byte.

    Raises
    ------
    ValueError
        A marker has no tokens or some outside the vocabulary, or the end marker is not one token.
    """

    def __init__(self, grammar: BaseGrammarObject, reasoning: ReasoningSpec) -> None:
        super().__init__(grammar, reasoning)
        check_markers(grammar.environment, reasoning)
        environment = grammar.environment
        self._naming = environment if environment.may_name_special_tokens else environment.naming_special_tokens
        """In it special tokens have bytes, which no text has."""
        token_bytes = self._naming.matchable_bytes
        self._start_bytes = b"".join(token_bytes[i] for i in reasoning.think_start_ids)
        self._num_first = len(token_bytes[reasoning.think_start_ids[0]])
        self._start_marker = Marker(self._start_bytes)
        self._end_words = ids_to_words(list(reasoning.think_end_ids), self.environment.num_mask_words)
        self._states = [_State()]

    def accept_token(self, token_id: int) -> None:
        super().accept_token(token_id)
        self._states.append(self._following(self._states[-1], token_id))

    def rollback(self, k: int) -> None:
        super().rollback(k)
        if k:
            del self._states[-k:]

    def fill_vocab_mask(self, vocab_mask: torch.Tensor, idx: int) -> None:
        self.grammar.fill_vocab_mask(vocab_mask, idx)
        words: npt.NDArray[np.int32] = vocab_mask.numpy()[idx]
        if (allowed := self._allowed_words()) is not None:
            np.bitwise_and(words, allowed, out=words)

    def active_grammar(self) -> BaseGrammarObject | None:
        return self.grammar.active_grammar() if self._allowed_words() is None else self

    def _allowed_words(self) -> npt.NDArray[np.int32] | None:
        """What the budget allows now; ``None``: everything."""
        state, budget = self._states[-1], self.reasoning.budget
        if budget is None:
            return None
        num_left = budget - state.num_tokens
        if state.is_inside:
            if num_left == 0:
                return self._end_words
            # The end token cannot stand inside a character: the last tokens begin none that they do not end.
            return _whole_characters(self._naming) if num_left <= _MAX_MISSING_BYTES else None
        if num_left == 0 and state.num_matched >= self._num_first:
            return _not_beginning_with(self._naming, self._start_bytes[state.num_matched])
        return None

    def _following(self, state: _State, token_id: int) -> _State:
        if state.is_inside:
            if token_id in self.reasoning.think_end_ids:
                return _State(num_tokens=state.num_tokens)
            return _State(is_inside=True, num_tokens=state.num_tokens + 1)
        data = self._naming.matchable_bytes[token_id]
        num_matched, length = self._start_marker.advance(state.num_matched, data)
        return _State(num_matched, length is not None, state.num_tokens)


def check_markers(environment: GrammarEnvironment, reasoning: ReasoningSpec) -> None:
    """Raise ``ValueError`` for markers of which :class:`ThinkingPartsObject` can make nothing."""
    start_ids, end_ids = reasoning.think_start_ids, reasoning.think_end_ids
    if len(start_ids) < 2 or len(end_ids) != 1:
        raise ValueError("thinking inside a grammar needs a start marker of several tokens and one token that ends it")
    if not all(0 <= i < len(environment.vocabulary) for i in (*start_ids, *end_ids)):
        raise ValueError("the markers of thinking have tokens outside the vocabulary")


@lru_cache(maxsize=16)
def _whole_characters(environment: GrammarEnvironment) -> npt.NDArray[np.int32]:
    """Bits of all tokens but those that begin a character and do not end it. [ceil(V / 32)] int32"""
    ids = [i for i, data in enumerate(environment.matchable_bytes) if not _begins_character(data)]
    return ids_to_words(ids, environment.num_mask_words)


@lru_cache(maxsize=64)
def _not_beginning_with(environment: GrammarEnvironment, byte: int) -> npt.NDArray[np.int32]:
    """Bits of all tokens but those that begin with ``byte``. [ceil(V / 32)] int32"""
    ids = [i for i, data in enumerate(environment.matchable_bytes) if data[:1] != bytes([byte])]
    return ids_to_words(ids, environment.num_mask_words)


def _begins_character(data: bytes) -> bool:
    """Whether the text ends inside a character that begins in it."""
    for length, byte in enumerate(reversed(data[-_MAX_MISSING_BYTES:]), start=1):
        if not 0x80 <= byte < 0xC0:
            return 0xC0 <= byte < 0xF8 and length < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
    return False

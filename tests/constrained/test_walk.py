"""What a walk through a grammar finds before any request is served with it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from typing_extensions import Self

from constrained.compile.walk import walk
from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.base import BaseGrammarObject
from constrained.engines.llguidance_backend import LLGuidanceBackend
from constrained.environment import GrammarEnvironment
from constrained.errors import InvalidGrammarError

_DEAD_BEHIND_A_COMMA = 'start: "[" ITEM ("," NEVER)? "]"\nITEM: /[a-z]{40}/\nNEVER: /d/ & /e/\n'


class _Text(BaseGrammarObject):
    """Writes the bytes of one text, after which nothing may follow."""

    def __init__(self, environment: GrammarEnvironment, text: bytes) -> None:
        super().__init__(environment)
        self.text = text
        self.written = 0

    @property
    def size_bytes(self) -> int:
        return len(self.text)

    def _accept(self, token_id: int) -> bool:
        self.written += 1
        return True

    def _rollback(self, k: int) -> None:
        self.written -= k

    def _is_accepting(self) -> bool:
        return False

    def _can_extend(self) -> bool:
        return True

    def _fill(self, words: npt.NDArray[np.int32], row: int) -> None:
        words[row] = 0
        for token_id in self.text[self.written : self.written + 1]:
            words[row, token_id >> 5] = np.uint32(1 << (token_id & 31)).astype(np.int32)

    def _forced_bytes(self) -> bytes:
        return b""

    def _copy(self) -> Self:
        return type(self)(self.environment, self.text)


def test_a_walk_that_prefers_separators_finds_a_dead_end_behind_one(engines: AutoGrammarBackend) -> None:
    backend = engines.backend("llguidance")
    assert isinstance(backend, LLGuidanceBackend)
    with pytest.raises(InvalidGrammarError, match="dead end"):
        walk(backend.dispatch_lark(_DEAD_BEHIND_A_COMMA), 64, prefers=b',":')


def test_a_text_that_nothing_may_follow_refuses_the_grammar(environment: GrammarEnvironment) -> None:
    with pytest.raises(InvalidGrammarError, match="after 'abc' nothing may follow"):
        walk(_Text(environment, b"abc"), 64)


def test_a_vocabulary_that_cannot_end_a_character_refuses_no_grammar(environment: GrammarEnvironment) -> None:
    walk(_Text(environment, "abc\u00e9".encode()[:-1]), 64)

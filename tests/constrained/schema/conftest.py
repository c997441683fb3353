"""An engine over single bytes: the smallest vocabulary that spells every text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from constrained.config import GrammarConfig
from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.base import BaseGrammarObject
from constrained.environment import GrammarEnvironment
from constrained.vocabulary import Vocabulary

STOP_ID = 256
_EXACT = GrammarConfig(json_undeclared_properties="open")


@pytest.fixture(scope="session")
def backends() -> AutoGrammarBackend:
    vocabulary = Vocabulary((*(bytes([i]) for i in range(256)), b"<end>"), frozenset({STOP_ID}))
    return AutoGrammarBackend(GrammarEnvironment(vocabulary, 257, (STOP_ID,), _EXACT))


@pytest.fixture(scope="session")
def accepts() -> Callable[[BaseGrammarObject, str], bool]:
    """Whether a grammar takes a whole text: each byte's mask bit set in its turn, and the stop token's at the end."""

    def check(grammar: BaseGrammarObject, text: str) -> bool:
        state = grammar.copy()
        mask = state.allocate_vocab_mask(257, 1)
        for token_id in [*text.encode(), STOP_ID]:
            state.fill_vocab_mask(mask, 0)
            if not int(mask[0, token_id >> 5]) >> (token_id & 31) & 1:
                return False
            state.accept_token(token_id)
        return True

    return check


@pytest.fixture(scope="session")
def takes(
    backends: AutoGrammarBackend, accepts: Callable[[BaseGrammarObject, str], bool]
) -> Callable[..., Callable[[Any], bool]]:
    """``takes(schema)(value)``: whether the compiled schema takes a value, spelled with the schema's key order."""
    import json

    from constrained.json_schema.writing.spelling import Speller
    from constrained.preparation import PrepareOptions
    from constrained.preparation.prepare import solver_of
    from constrained.spec import GrammarSpec

    def compile_schema(schema: Any, **fields: Any) -> Callable[[Any], bool]:
        spec = GrammarSpec(kind="json_schema", value=json.dumps(schema), **fields)
        grammar = backends.compile(spec).grammar
        solver, goal = solver_of(spec, PrepareOptions(undeclared_properties="open"))
        speller = Speller(solver)
        return lambda value: accepts(grammar, speller.spell(goal, value))

    return compile_schema

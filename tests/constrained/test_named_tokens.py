"""Special tokens in a structural tag: legal where the tag names them, and nowhere else."""

from __future__ import annotations

import json

import pytest

from constrained.compile.walk import legal_token_ids, walk
from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.base import BaseGrammarObject
from constrained.errors import TokenRejectedError
from constrained.spec import GrammarSpec

EOS, OTHER_STOP, THINK_END = 256, 257, 258


def tag_spec(schema: dict, backend: str) -> GrammarSpec:
    token = {"type": "token", "token": THINK_END}
    json_format = {"type": "json_schema", "json_schema": schema}
    begin = {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": token}
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": [begin, json_format]}}
    return GrammarSpec(kind="structural_tag", value=json.dumps(tag), strict=True, backend=backend)


WIDE = {"type": "object", "properties": {f"p{i}": {"enum": [f"v{i}{j}" for j in range(60)]} for i in range(60)}}


@pytest.mark.parametrize("schema", [{"type": "object", "properties": {"a": {"type": "integer"}}}, WIDE])
@pytest.mark.parametrize("is_shipped", [False, True])
@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
def test_a_named_token_is_legal_where_it_is_named(
    engines: AutoGrammarBackend, engine: str, schema: dict, is_shipped: bool
) -> None:
    engines = AutoGrammarBackend(engines.environment)  # whose compiler knows no rule yet
    grammar = engines.compile(tag_spec(schema, engine)).grammar
    if is_shipped:
        backend = engines.backend(engine)
        payload = backend.serialize(grammar)
        if engine == "xgrammar":
            assert (payload[:1] == b"t") == (schema is not WIDE)  # a large one travels compiled
        grammar = backend.deserialize(payload)
    state: BaseGrammarObject = grammar.copy()
    for byte in b"x<end>":
        assert THINK_END in legal_token_ids(state)
        assert OTHER_STOP not in legal_token_ids(state)
        state.accept_token(byte)
    state.accept_token(THINK_END)
    assert THINK_END not in legal_token_ids(state)
    state.rollback(1)
    state.accept_token(THINK_END)
    state.accept_token(ord("{"))
    with pytest.raises(TokenRejectedError):
        state.accept_token(THINK_END)
    walk(grammar, 40)


def test_a_tag_that_names_no_token_has_none(engines: AutoGrammarBackend) -> None:
    tag = {"type": "structural_tag", "format": {"type": "any_text"}}
    grammar = engines.compile(GrammarSpec(kind="structural_tag", value=json.dumps(tag))).grammar.copy()
    assert set(legal_token_ids(grammar)) & {OTHER_STOP, THINK_END} == set()


def test_a_token_that_is_forced_stays_legal_when_the_forced_text_was_asked_for(engines: AutoGrammarBackend) -> None:
    token = {"type": "token", "token": THINK_END}
    tag = {"type": "sequence", "elements": [{"type": "const_string", "value": "ab"}, token, token]}
    value = json.dumps({"type": "structural_tag", "format": tag})
    state = engines.compile(GrammarSpec(kind="structural_tag", value=value)).grammar.copy()
    assert state.forced_bytes() == b"ab"
    for token_id in (*b"ab", THINK_END):
        assert token_id in legal_token_ids(state)
        state.accept_token(token_id)
        state.forced_bytes()
    assert legal_token_ids(state).tolist() == [THINK_END]

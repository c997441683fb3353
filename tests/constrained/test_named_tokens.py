"""Special tokens in a structural tag: legal where the tag names them, and nowhere else."""

from __future__ import annotations

import json

import pytest

from constrained.auto import AutoGrammarBackend
from constrained.base import BaseGrammarObject
from constrained.errors import TokenRejectedError
from constrained.spec import GrammarSpec
from constrained.walk import legal_token_ids, walk

EOS, OTHER_STOP, THINK_END = 256, 257, 258


def tag_spec(schema: dict) -> GrammarSpec:
    token = {"type": "token", "token": THINK_END}
    json_format = {"type": "json_schema", "json_schema": schema}
    begin = {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": token}
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": [begin, json_format]}}
    return GrammarSpec(kind="structural_tag", value=json.dumps(tag), strict=True)


WIDE = {"type": "object", "properties": {f"p{i}": {"enum": [f"v{i}{j}" for j in range(60)]} for i in range(60)}}


@pytest.mark.parametrize("schema", [{"type": "object", "properties": {"a": {"type": "integer"}}}, WIDE])
@pytest.mark.parametrize("is_shipped", [False, True])
def test_a_named_token_is_legal_where_it_is_named(engines: AutoGrammarBackend, schema: dict, is_shipped: bool) -> None:
    engines = AutoGrammarBackend(engines.environment)  # whose compiler knows no rule yet
    grammar = engines.compile(tag_spec(schema)).grammar
    if is_shipped:
        backend = engines.backend("xgrammar")
        payload = backend.serialize(grammar)
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

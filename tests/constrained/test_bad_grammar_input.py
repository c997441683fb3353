"""Hostile and broken specifications: served rightly or refused with what and where, within the deadline, in workers of
bounded memory, and the next good request works."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from constrained.engines.base import BaseGrammarBackend, BaseGrammarObject, InvalidGrammarObject
from constrained.spec import GrammarSpec

DEADLINE = 60.0

Case = tuple[str, str, str]

REFUSED: list[Case] = [
    ("json_schema", '{"type":', r"not valid JSON.*column 9"),
    ("json_schema", '["array"]', "schema is an object"),
    ("json_schema", '"string"', "schema is an object"),
    ("json_schema", '{"type":5}', "at /type"),
    ("json_schema", '{"type":"strnig"}', r"strnig.*at /type"),
    ("json_schema", '{"type":"object","properties":[]}', "at /properties"),
    ("json_schema", '{"$ref":"#/definitions/nope"}', r"#/definitions/nope.*at /\$ref"),
    ("json_schema", '{"$ref":"https://example.com/s.json"}', r"example\.com.*at /\$ref"),
    ("json_schema", '{"$ref":"#"}', "circle"),
    ("json_schema", '{"type":"object","properties":{"n":{"$ref":"#"}},"required":["n"]}', "no value|nothing satisfies"),
    ("json_schema", '{"type":"integer","minimum":5,"maximum":3}', "no value"),
    ("json_schema", '{"type":"string","minLength":5,"maxLength":3}', "no value"),
    ("json_schema", "false", "no value"),
    ("json_schema", '{"type":"array","items":' * 500 + "{}" + "}" * 500, "nested deeper"),
    ("json_schema", '{"not":' * 100_000 + "{}" + "}" * 100_000, "nested"),
    ("json_schema", json.dumps({"description": "x" * 10_000_000}), "longer than"),
    ("json_schema", '{"type":"string\0"}', "NUL"),
    ("regex", "(a{1,1000}){1,1000}", "repetitions"),
    ("regex", r"((\w{1,100}){1,100}){1,100}", "repetitions"),
    ("regex", "a(b", "position 1"),
    ("regex", r"(a)\1", "back-reference"),
    ("regex", "(?<=a)b", "look-behind"),
    ("regex", "(" * 100_000 + "a" + ")" * 100_000, "longer than|nest"),
    ("regex", "\ud800", "Unicode"),
    ("ebnf", "", "empty"),
    ("ebnf", 'x ::= "a"', "root"),
    ("ebnf", 'root ::= "a" foo', "foo"),
    ("ebnf", 'root ::= root "a"', "nothing satisfies|no answer"),
    ("ebnf", "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000, "[Nn]est"),
    ("ebnf", 'start: "a"\n     | foo', r'^invalid grammar: line 1, column \d+: unknown name: "foo"$'),
    ("ebnf", "start: /[a-/", r"line 1, column \d+: .*unclosed character class$"),
    ("ebnf", 'start: "a" "b', "line 1"),
    ("structural_tag", "{", "JSON"),
    ("structural_tag", "{}", "format|structures"),
    ("structural_tag", '{"type":"structural_tag","format":{"type":"nope"}}', "nope"),
]

SERVED: list[tuple[str, str, bytes]] = [
    ("json_schema", json.dumps({"enum": [f"value{i}" for i in range(50_000)]}), b'"value49999"'),
    ("json_schema", '{"type":"object","properties":{"n":{"$ref":"#"}},"additionalProperties":false}', b'{"n":{}}'),
    ("ebnf", 'root ::= root "a" | "b"', b"baa"),
    ("regex", "(a|a)*(a|a)*(a|a)*b" * 20, b"aab" * 20),
    ("regex", "", b""),
]


def outcome(backend: BaseGrammarBackend, kind: Any, value: str) -> BaseGrammarObject:
    started = time.monotonic()
    grammar, _ = backend.get_cached_or_future_value(GrammarSpec(kind=kind, value=value))
    result = grammar.result(DEADLINE + 5) if isinstance(grammar, Future) else grammar
    assert time.monotonic() - started < DEADLINE + 1
    return result


def assert_next_request_works(backend: BaseGrammarBackend) -> None:
    grammar = outcome(backend, "regex", f"good{time.monotonic_ns()}")
    assert not isinstance(grammar, InvalidGrammarObject), grammar.error_message
    grammar.accept_token(ord("g"))


def short(value: object) -> str:
    return str(value)[:40]


@pytest.mark.parametrize(("kind", "value", "message"), REFUSED, ids=short)
def test_it_is_refused_with_what_and_where(pooled: BaseGrammarBackend, kind: str, value: str, message: str) -> None:
    grammar = outcome(pooled, kind, value)
    assert isinstance(grammar, InvalidGrammarObject)
    error = str(grammar.error)
    assert re.search(message, error), error
    assert len(error) < 1000
    assert grammar.error.status == 400
    assert_next_request_works(pooled)


@pytest.mark.parametrize(("kind", "value", "text"), SERVED, ids=short)
def test_it_is_large_or_odd_and_served_rightly(pooled: BaseGrammarBackend, kind: str, value: str, text: bytes) -> None:
    grammar = outcome(pooled, kind, value)
    assert not isinstance(grammar, InvalidGrammarObject), grammar.error_message
    for byte in text:
        grammar.accept_token(byte)
    assert grammar.is_accepting()
    assert_next_request_works(pooled)


def test_a_huge_grammar_leaves_the_serving_process_small(pooled: BaseGrammarBackend) -> None:
    def peak_bytes() -> int:
        line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    before = peak_bytes()
    properties = {f"key{i}": {"type": "string", "pattern": f"^[a-z]{{1,{i % 50 + 1}}}$"} for i in range(3000)}
    outcome(pooled, "json_schema", json.dumps({"type": "object", "properties": properties}))
    outcome(pooled, "ebnf", 'root ::= (("a"{0,300}){0,300}){0,300}')
    assert peak_bytes() - before < 1 << 30
    assert_next_request_works(pooled)


def test_no_specification_fails_open(pooled: BaseGrammarBackend) -> None:
    for kind, value, _ in REFUSED:
        grammar = outcome(pooled, kind, value)
        mask = BaseGrammarObject.allocate_vocab_mask(pooled.environment.vocab_size, 1)
        with pytest.raises(ValueError, match=r".+"):
            grammar.fill_vocab_mask(mask, 0)
        with pytest.raises(ValueError, match=r".+"):
            grammar.accept_token(ord("a"))

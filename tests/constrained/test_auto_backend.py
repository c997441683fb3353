"""Which engine takes a request, and what happens when none does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.base import (
    GRAMMAR_BACKEND_REGISTRY,
    BaseGrammarObject,
    InvalidGrammarObject,
    create_grammar_backend,
    register_grammar_backend,
)
from constrained.engines.xgrammar_backend import XGrammarBackend
from constrained.errors import GrammarError, InvalidGrammarError, TokenRejectedError
from constrained.spec import GrammarSpec

OBJECT = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
TAG = json.dumps(
    {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": ["<f"],
            "tags": [
                {"begin": "<f>", "content": {"type": "json_schema", "json_schema": {"type": "boolean"}}, "end": "</f>"}
            ],
        },
    }
)
GRAMMAR_TAG, LOOKAHEAD_TAG = (
    json.dumps({"type": "structural_tag", "format": {"type": "grammar", "grammar": grammar}})
    for grammar in ('root ::= "a" root "b" | "c"', 'root ::= x "b"\nx ::= "a" (= "b")')
)


def spec(kind: Any, value: str, **fields: Any) -> GrammarSpec:
    return GrammarSpec(kind=kind, value=value, **fields)


@pytest.mark.parametrize(
    ("asked", "engine"),
    [
        (spec("json_schema", OBJECT), "llguidance"),
        (spec("regex", "a+"), "llguidance"),
        (spec("ebnf", 'root ::= "a"'), "llguidance"),
        (spec("structural_tag", TAG), "llguidance"),
        (spec("structural_tag", GRAMMAR_TAG), "llguidance"),
        (spec("structural_tag", LOOKAHEAD_TAG), "xgrammar"),
        (spec("structural_tag", TAG, backend="xgrammar"), "xgrammar"),
        (spec("ebnf", 'start: "a" | "b"'), "llguidance"),
        (spec("regex", "a+", backend="outlines"), "outlines"),
        (spec("regex", "a+", backend="xgrammar"), "xgrammar"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.kind}-{value.backend}",
)
def test_each_kind_goes_to_the_engine_that_enforces_it(
    engines: AutoGrammarBackend, asked: GrammarSpec, engine: str
) -> None:
    assert engines.compile(asked).backend == engine


def test_every_kind_works_through_the_servers_default(engines: AutoGrammarBackend) -> None:
    for asked, text in [
        (spec("json_schema", OBJECT), b'{"a":1}'),
        (spec("regex", "ab+"), b"abb"),
        (spec("ebnf", 'root ::= "a" root | "b"'), b"aab"),
        (spec("structural_tag", TAG), b"hello <f>true</f> and <f>false</f>"),
    ]:
        grammar = engines.compile(asked).grammar.copy()
        for byte in text:
            grammar.accept_token(byte)
        assert grammar.is_accepting(), asked


@pytest.mark.parametrize(
    ("grammar", "message"),
    [('root ::= "a" | foo', "foo"), ('start: "a" | foo', "foo"), ("root = 1", "::="), ("start: (", "not closed")],
)
def test_a_grammar_that_no_dialect_reads_is_an_error_of_the_dialect_it_looks_like(
    engines: AutoGrammarBackend, grammar: str, message: str
) -> None:
    with pytest.raises(InvalidGrammarError, match=message):
        engines.compile(spec("ebnf", grammar))


@pytest.mark.parametrize("kind", ["ebnf", "structural_tag"])
def test_outlines_refuses_what_it_cannot_do(engines: AutoGrammarBackend, kind: str) -> None:
    with pytest.raises(InvalidGrammarError, match="outlines"):
        engines.compile(spec(kind, TAG if kind == "structural_tag" else 'root ::= "a"', backend="outlines"))


def test_an_unknown_engine_is_an_error_that_lists_the_known_ones(engines: AutoGrammarBackend) -> None:
    with pytest.raises(InvalidGrammarError, match=r"'nonesuch'; there are: auto, .*xgrammar"):
        engines.compile(spec("regex", "a", backend="nonesuch"))


def test_a_request_cannot_ask_for_none(engines: AutoGrammarBackend) -> None:
    with pytest.raises(InvalidGrammarError, match="serves no constraint"):
        engines.compile(spec("regex", "a", backend="none"))


def test_a_server_does_not_start_with_an_unknown_engine(environment_with) -> None:
    with pytest.raises(InvalidGrammarError, match="nonesuch"):
        create_grammar_backend(environment_with(backend="nonesuch"))


def test_a_server_may_run_without_grammars(environment_with) -> None:
    assert create_grammar_backend(environment_with(backend="none")) is None


def test_a_registered_engine_gets_the_specification_as_it_was_written(environment_with, monkeypatch) -> None:
    seen: list[str] = []

    class Custom(XGrammarBackend):
        name = "custom"

        def dispatch_regex(self, value: str) -> BaseGrammarObject:
            seen.append(value)
            return super().dispatch_regex("b")

    monkeypatch.setattr("constrained.engines.base.GRAMMAR_BACKEND_REGISTRY", GRAMMAR_BACKEND_REGISTRY)
    register_grammar_backend("custom", Custom)
    try:
        compiled = AutoGrammarBackend(environment_with(backend="custom")).compile(spec("regex", "^anything$"))
    finally:
        del GRAMMAR_BACKEND_REGISTRY["custom"]
    assert seen == ["^anything$"]
    assert compiled.backend == "custom"
    assert compiled.grammar.forced_bytes() == b"b"


@pytest.mark.parametrize("name", ["auto", "none"])
def test_reserved_names_cannot_be_registered(name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        register_grammar_backend(name, XGrammarBackend)


def test_an_invalid_grammar_carries_its_error_and_does_nothing_else(engines: AutoGrammarBackend) -> None:
    grammar = engines._init_value_dispatch(spec("regex", "a("))
    assert isinstance(grammar, InvalidGrammarObject)
    assert grammar.error_message
    for use in (lambda: grammar.accept_token(97), lambda: grammar.forced_bytes(), lambda: grammar.is_terminated()):
        with pytest.raises(GrammarError):
            use()


def test_an_error_names_the_json_pointer_of_the_keyword(engines: AutoGrammarBackend) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "https://x.example/y"}}}}
    with pytest.raises(InvalidGrammarError) as caught:
        engines.compile(spec("json_schema", json.dumps(schema)))
    assert caught.value.pointer == "/properties/a/items/$ref"
    assert str(caught.value).endswith("(at /properties/a/items/$ref)")


@pytest.mark.parametrize(
    ("whitespace", "fits", "breaks"),
    [
        ("compact", b'{"a":1}', b'{ "a":1}'),
        ("bounded", b'{        "a": 1 }', b'{         "a":1}'),
        ("any", b"{" + b" " * 40 + b'"a": 1}', None),
    ],
)
@pytest.mark.parametrize("engine", ["xgrammar", "llguidance", "outlines"])
def test_whitespace_between_json_tokens_is_as_configured(
    environment_with, engine: str, whitespace: str, fits: bytes, breaks: bytes | None
) -> None:
    backend = AutoGrammarBackend(environment_with(json_whitespace=whitespace))
    schema = '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}'
    start = backend.backend(engine).dispatch_json(schema)
    assert accepts(start, fits)
    assert breaks is None or not accepts(start, breaks)


def accepts(start: BaseGrammarObject, text: bytes) -> bool:
    grammar = start.copy()
    try:
        for byte in text:
            grammar.accept_token(byte)
    except TokenRejectedError:
        return False
    return grammar.is_accepting()


def test_the_configured_length_is_the_one_that_bounds_a_specification(environment_with) -> None:
    schema = json.dumps({"type": "boolean", "description": "x" * 2_100_000})
    with pytest.raises(InvalidGrammarError, match="the limit is 2,000,000"):
        AutoGrammarBackend(environment_with()).compile(spec("json_schema", schema))
    AutoGrammarBackend(environment_with(max_spec_bytes=2_200_000)).compile(spec("json_schema", schema))


_ENDS_AT_ONCE = """
import sys, time
sys.path[:0] = {path!r}
from conftest import make_environment
from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.base import create_grammar_backend
def slow(backend):
    time.sleep(0.5)
    print("compiled")
AutoGrammarBackend.compile_common_rules = slow
create_grammar_backend(make_environment())
"""


def test_a_process_that_ends_at_once_waits_for_the_common_rules(tmp_path: Path) -> None:
    """A thread that comes back from an engine while the interpreter is torn down would abort the process."""
    code = _ENDS_AT_ONCE.format(path=[str(Path(__file__).parent), *sys.path])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "compiled\n"), done.stderr

"""What a request's options change, and what two engines really enforce of schemas handed to them as they are."""

# ruff: noqa: E501 - a table reads best with one case a line

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from constrained.compile.walk import legal_token_ids
from constrained.engines.auto import AutoGrammarBackend
from constrained.environment import GrammarEnvironment
from constrained.errors import GrammarError
from constrained.json_schema.prepared import Limits
from constrained.preparation import PrepareOptions, SchemaError, prepare
from constrained.preparation.native import check_native_schema
from constrained.spec import GrammarSpec
from constrained.vocabulary import Vocabulary

FORECAST = {
    "type": "object",
    "properties": {"forecast": {"type": "string"}, "temperature": {"type": "number"}},
    "required": ["temperature"],
}


def test_strict_closes_objects_that_declare_properties(takes: Any) -> None:
    assert takes(FORECAST)({"temperature": 1, "other": 2})
    assert not takes(FORECAST, strict=True)({"temperature": 1, "other": 2})
    assert takes(FORECAST, strict=True)({"temperature": 1})


def test_strict_leaves_a_stated_additional_properties_alone(takes: Any) -> None:
    schema = {**FORECAST, "additionalProperties": {"type": "integer"}}
    assert takes(schema, strict=True)({"temperature": 1, "other": 2})


def test_strict_closes_merged_objects_as_one(takes: Any) -> None:
    schema = {
        "allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "integer"}}}],
        "type": "object",
    }
    assert takes(schema, strict=True)({"a": 1, "b": 2})
    assert not takes(schema, strict=True)({"a": 1, "c": 2})


def test_an_undeclared_key_is_no_misspelt_declared_one_and_has_a_bound(backends: Any, accepts: Any) -> None:
    grammar = backends.compile(GrammarSpec(kind="json_schema", value=json.dumps(FORECAST))).grammar
    assert accepts(grammar, '{"temperature":1,"temperatur":"x"}')
    assert not accepts(grammar, '{"temperature":1,"temperature":"x"}')
    assert not accepts(grammar, '{"temperature":1,"\\u0074emperature":"x"}')
    assert accepts(grammar, '{"temperature":1,"%s":2}' % ("k" * 64))
    assert not accepts(grammar, '{"temperature":1,"%s":2}' % ("k" * 65))


def test_declared_keys_come_in_the_schemas_order(backends: Any, accepts: Any) -> None:
    grammar = backends.compile(GrammarSpec(kind="json_schema", value=json.dumps(FORECAST))).grammar
    assert accepts(grammar, '{"forecast":"x","temperature":1}')
    assert not accepts(grammar, '{"temperature":1,"forecast":"x"}')


@pytest.mark.parametrize(("whitespace", "most"), [("compact", 0), ("bounded", 8), ("any", 50)])
def test_whitespace_between_tokens_is_bounded(backends: Any, accepts: Any, whitespace: Any, most: int) -> None:
    prepared = prepare(
        GrammarSpec(kind="json_schema", value=json.dumps(FORECAST)), PrepareOptions(whitespace=whitespace)
    )
    grammar = backends.backend(prepared.backend).dispatch_lark(prepared.text)
    space = " " * most
    assert accepts(grammar, "{" + space + '"temperature"' + space + ":" + space + "1" + space + "}")
    assert accepts(grammar, '{"temperature":1}')
    assert not accepts(grammar, ' {"temperature":1}')
    assert not accepts(grammar, '{"temperature":1} ')
    if whitespace != "any":
        assert not accepts(grammar, "{" + space + ' "temperature":1}')
        assert not accepts(grammar, '{"temperature": ' + space + "1}")


def test_a_list_of_possible_keys_never_repeats_one(backends: Any, accepts: Any) -> None:
    schema = {"type": "object", "patternProperties": {"^(en|fr)$": {"type": "string"}}, "additionalProperties": False}
    grammar = backends.compile(GrammarSpec(kind="json_schema", value=json.dumps(schema))).grammar
    assert accepts(grammar, '{"en":"tree","fr":"arbre"}')
    assert not accepts(grammar, '{"en":"tree","en":"arbre"}')


def test_a_string_of_text_is_never_ill_formed_utf8(backends: Any) -> None:
    grammar = backends.compile(
        GrammarSpec(kind="json_schema", value='{"not": {"pattern": "b"}, "type": "string"}')
    ).grammar
    state = grammar.copy()
    mask = state.allocate_vocab_mask(257, 1)
    state.accept_token(ord('"'))
    state.fill_vocab_mask(mask, 0)
    lone = [byte for byte in range(0x80, 0xC0) if int(mask[0, byte >> 5]) >> (byte & 31) & 1]
    assert lone == []


@pytest.mark.parametrize("backend", ["xgrammar", "outlines", "llguidance"])
def test_a_named_backend_is_used_or_refuses(backend: str) -> None:
    prepared = prepare(GrammarSpec(kind="json_schema", value='{"type":"string"}', backend=backend))
    assert prepared.backend == backend


def test_preparing_is_deterministic_and_quick() -> None:
    schema = {
        "type": "object",
        "properties": {f"field{i}": {"type": kind} for i, kind in enumerate(["string", "integer", "boolean"] * 4)},
        "required": ["field0"],
        "additionalProperties": False,
    }
    spec = GrammarSpec(kind="json_schema", value=json.dumps(schema))
    first = prepare(spec)
    times = []
    for _ in range(20):
        started = time.perf_counter()
        assert prepare(spec) == first
        times.append(time.perf_counter() - started)
    assert min(times) < 0.01


NATIVE = [
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}, ['{"a":"x"}', "{}", '{"a":1,"b":2}']),
    ({"type": "integer", "minimum": 2, "maximum": 11}, ["1", "12", "2.5"]),
    ({"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 5}, ["2", "5"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"a"', '"abcd"', "1"]),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}, ["[]", "[true,true,true]", "[1]"]),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, ['["a"]', "[1,2]"]),
    ({"enum": ["a", 1]}, ['"b"', "2"]),
    ({"const": "a"}, ['"b"']),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ['"a"', "true"]),
    ({"allOf": [{"type": "integer"}]}, ['"a"']),
    ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, ['"a"', "true"]),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}, ['"a"']),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "invalid"), NATIVE, ids=lambda one: json.dumps(one)[:60])
def test_xgrammar_enforces_what_the_table_says(backends: Any, accepts: Any, schema: Any, invalid: list[str]) -> None:
    check_native_schema(schema, Limits(), "")
    grammar = backends.backend("xgrammar").dispatch_json(json.dumps(schema))
    assert [text for text in invalid if accepts(grammar, text)] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^a", "maxLength": 2},
        {"type": "number", "minimum": 1},
        {"type": "integer", "multipleOf": 2},
        {"type": "array", "uniqueItems": True},
        {"not": {"type": "string"}},
        {"if": {"type": "string"}, "then": {"maxLength": 1}},
        {"allOf": [{"type": "integer"}, {"minimum": 3}]},
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"anyOf": [{"type": "integer"}], "enum": [1]},
        {"$ref": "#/$defs/a", "minLength": 2, "$defs": {"a": {"type": "string"}}},
        {"properties": {"a": {"dependentRequired": {"a": ["b"]}}}},
    ],
    ids=json.dumps,
)
def test_what_xgrammar_would_ignore_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaError):
        check_native_schema(schema, Limits(), "")


OUTLINES = [
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}, ['{"a":"x"}', "{}", '{"b":"x"}']),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"a"', '"abcd"', "1"]),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}, ["[]", "[true,true,true]", "[1]"]),
    ({"type": "object", "properties": {"😀 ü.*": {"type": "null"}}, "required": ["😀 ü.*"]}, ["{}", '{"😀 üab":null}']),
    ({"enum": ["a", 1, None, True]}, ['"b"', "2", "false"]),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ['"a"', "true"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "invalid"), OUTLINES, ids=lambda one: json.dumps(one)[:60])
def test_outlines_enforces_what_the_table_says(backends: Any, accepts: Any, schema: Any, invalid: list[str]) -> None:
    grammar = backends.compile(GrammarSpec(kind="json_schema", value=json.dumps(schema), backend="outlines")).grammar
    assert [text for text in invalid if accepts(grammar, text)] == []


@pytest.mark.parametrize(
    "schema",
    [{"type": "string", "pattern": "a"}, {"type": "integer", "minimum": 1}, {"$ref": "#"}, True, {"type": "array"}, {}]
    + [{"type": "object", "properties": {name: {"type": "null"}}} for name in ('a"b', "a\\b", "a\nb", "\0")],
    ids=json.dumps,
)
def test_what_outlines_would_ignore_is_refused(backends: Any, schema: Any) -> None:
    with pytest.raises(GrammarError):
        backends.compile(GrammarSpec(kind="json_schema", value=json.dumps(schema), backend="outlines"))


def test_schemas_inside_structural_tags_hold_too(backends: Any, accepts: Any) -> None:
    tag = {
        "structures": [
            {"begin": "<f>", "schema": {"type": "string", "pattern": "^a+$", "maxLength": 2}, "end": "</f>"}
        ],
        "triggers": ["<f"],
    }
    grammar = backends.compile(GrammarSpec(kind="structural_tag", value=json.dumps(tag))).grammar
    assert accepts(grammar, 'say <f>"aa"</f> or nothing')
    assert not accepts(grammar, '<f>"aaa"</f>')
    assert not accepts(grammar, '<f>"ab"</f>')


@pytest.mark.parametrize(
    ("grammar", "valid", "invalid"),
    [
        ('root ::= root "a" | "b"', ["b", "baa"], ["a"]),
        ('root ::= "a" | ', ["a", ""], ["b"]),
        ('root ::=\n  | "a"', ["a", ""], ["b"]),
        ('start: "a" B\nB: /x+/', ["ax", "axx"], ["a", "xa"]),
    ],
)
def test_grammars_of_every_dialect_are_read(
    backends: Any, accepts: Any, grammar: str, valid: list[str], invalid: list[str]
) -> None:
    compiled = backends.compile(GrammarSpec(kind="ebnf", value=grammar)).grammar
    assert [text for text in valid if not accepts(compiled, text)] == []
    assert [text for text in invalid if accepts(compiled, text)] == []
    part = {"type": "grammar", "grammar": grammar, "syntax": "lark" if grammar.startswith("start") else "ebnf"}
    tag = {"format": {"type": "tag", "begin": "<g>", "content": part, "end": "</g>"}}
    compiled = backends.compile(GrammarSpec(kind="structural_tag", value=json.dumps(tag))).grammar
    assert [text for text in valid if not accepts(compiled, f"<g>{text}</g>")] == []
    assert [text for text in invalid if accepts(compiled, f"<g>{text}</g>")] == []


@pytest.mark.parametrize(
    ("pattern", "valid", "invalid"),
    [
        ("^a(?=b)[bc]+$", ["ab", "abc"], ["ac", "a"]),
        (r"\d{2,3}", ["12", "123"], ["1", "1234", "١٢"]),
        ("[^a]", ["b", "é", "\n"], ["a", "bb"]),
        ("a.b", ["axb"], ["a\nb"]),
        (r"\p{Lu}+", ["ÄB"], ["ab"]),
    ],
)
def test_a_pattern_matches_the_whole_answer(
    backends: Any, accepts: Any, pattern: str, valid: list[str], invalid: list[str]
) -> None:
    compiled = backends.compile(GrammarSpec(kind="regex", value=pattern)).grammar
    assert [text for text in valid if not accepts(compiled, text)] == []
    assert [text for text in invalid if accepts(compiled, text)] == []


# A value, its length, and spellings of it that no engine may tell apart.
SPELLINGS = [
    "",
    "a",
    "é",
    "\\n",
    '\\"',
    "\\u00e9",
    "\\ud83d\\ude00",
    "a\\\\",
    "\\/b",
    "ab\\t",
    "a\\u0041é",
    "abcd",
    '\\"\\"\\"\\"',
]


LENGTHS = [(0, 3), (2, 2), (1, 3), (2, None), (1, None), (0, 1), (0, 0), (3, 127)]


@pytest.mark.parametrize(
    ("engine", "low", "high"),
    [*(("xgrammar", *one) for one in LENGTHS), *(("llguidance", *one) for one in [*LENGTHS, (3, 600)])],
)
def test_a_string_is_as_long_as_its_value_however_that_is_spelled(
    backends: Any, accepts: Any, engine: str, low: int, high: int | None
) -> None:
    schema = {"type": "string", "minLength": low, **({} if high is None else {"maxLength": high})}
    grammar = backends.compile(GrammarSpec(kind="json_schema", value=json.dumps(schema), backend=engine)).grammar
    for text in SPELLINGS:
        spelled = f'"{text}"'
        length = len(json.loads(spelled))
        assert accepts(grammar, spelled) is (low <= length and (high is None or length <= high)), spelled
    if high is not None:
        assert accepts(grammar, '"' + "x" * high + '"')
        assert not accepts(grammar, '"' + "x" * (high + 1) + '"')
        assert not accepts(grammar, '"' + "x" * high + '\\n"')


def test_masks_do_not_depend_on_what_was_compiled_before() -> None:
    vocabulary = Vocabulary(
        (*(bytes([i]) for i in range(256)), b"<end>", b"ab", b'a"', b'",', b'\\"'), frozenset({256})
    )

    def walk_masks(backend: AutoGrammarBackend, schema: dict[str, Any]) -> list[list[int]]:
        spec = GrammarSpec(kind="json_schema", value=json.dumps(schema), backend="xgrammar")
        state = backend.compile(spec).grammar.copy()
        masks = []
        for byte in b'{"a": "xy\\n", "b": "q"':
            masks.append(legal_token_ids(state).tolist())
            state.accept_token(byte)
        return [*masks, legal_token_ids(state).tolist()]

    def schema_of(low: int, high: int) -> dict[str, Any]:
        text = {"type": "string", "minLength": low, "maxLength": high}
        return {"type": "object", "properties": {"a": text, "b": {"type": "string"}}, "required": ["a", "b"]}

    environment = GrammarEnvironment(vocabulary, len(vocabulary), (256,))
    warm = AutoGrammarBackend(environment)
    warm.compile_common_rules()
    for low, high in ((0, 3), (0, 40), (3, 5), (2, 70)):
        cold = AutoGrammarBackend(environment)
        assert walk_masks(warm, schema_of(low, high)) == walk_masks(cold, schema_of(low, high))


def test_a_bounded_string_is_written_so_that_masks_are_known_beforehand() -> None:
    schema = {"type": "string", "minLength": 2, "maxLength": 40}
    text = prepare(GrammarSpec(kind="json_schema", value=json.dumps(schema), backend="xgrammar")).text
    assert "){2,40}" not in text
    assert text.count(" | [\\u0022]") == 38

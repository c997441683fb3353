"""What cannot be served is refused before anything heavy happens, and the error says where."""

# ruff: noqa: E501 - a table reads best with one case a line

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest

from constrained.preparation import SchemaError, prepare
from constrained.spec import GrammarSpec


def refusal(kind: Any, value: Any, **fields: Any) -> SchemaError:
    text = value if isinstance(value, str) else json.dumps(value)
    with pytest.raises(SchemaError) as caught:
        prepare(GrammarSpec(kind=kind, value=text, **fields))
    return caught.value


def nested(depth: int) -> str:
    return '{"properties":{"a":' * depth + "{}" + "}}" * depth


@pytest.mark.parametrize(
    ("schema", "pointer", "words"),
    [
        ("{", "", "not valid JSON"),
        ('"text"', "", "object or a boolean"),
        ("[1]", "", "a list"),
        ("null", "", "null"),
        ("3", "", "a number"),
        ('{"a": "\0"}', "", "NUL"),
        ('{"const": "\\ud800"}', "", "surrogate"),
        ('{"const": NaN}', "", "not JSON"),
        ({"properties": {"a": {"type": "strnig"}}}, "/properties/a/type", "unknown type"),
        ({"type": []}, "/type", "empty"),
        ({"required": "a"}, "/required", "list of property names"),
        ({"properties": {"a": 3}}, "/properties", "schemas"),
        ({"minLength": -1}, "/minLength", "at least zero"),
        ({"multipleOf": 0}, "/multipleOf", "above zero"),
        ({"anyOf": []}, "/anyOf", "at least one"),
        ({"$ref": "#/$defs/none"}, "/$ref", "points nowhere"),
        ({"$ref": "#none"}, "/$ref", "no anchor"),
        ({"items": {"$ref": "https://example.com/schema"}}, "/items/$ref", "leaves this document"),
        ({"$ref": "#"}, "", "circle"),
        ({"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, None, "circle"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "", "contradict"),
        ({"type": "string", "enum": [1]}, "", "contradict"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "/required", "'a' is required, but can have no value"),
        ({"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]}, "", "contradict"),
        ({"pattern": "a("}, "/pattern", "position"),
        ({"pattern": "(a)\\1"}, "/pattern", "back-references"),
        ({"pattern": "(a\\b)+"}, "/pattern", "word boundary"),
        ({"pattern": "(?<=a)b"}, "/pattern", "look-behind (not supported; make it a part of the pattern)"),
        ({"pattern": "\\p{Script=Greek}"}, "/pattern", "categories"),
        ({"pattern": "((a{1,1000}){1,1000}){1,1000}"}, "/pattern", "repeats too much"),
        ({"type": "array", "uniqueItems": True}, "/uniqueItems", "uniqueItems"),
        ({"format": "idn-hostname"}, "/format", "idn-hostname"),
        ({"not": {"type": "string", "format": "date"}}, "/not/format", "opposite"),
        (nested(500), "", "deeper"),
        ({"items": {"properties": {f"k{i}": {} for i in range(20_000)}}}, "/items/properties", "20,000 entries; the limit is 2,000"),
        ('{"a":' * 50_000 + "1" + "}" * 50_000, "", "deeper"),
        ({"enum": list(range(100_001))}, "/enum", "limit"),
        ({"description": "x" * 10_000_000}, "", "bytes long"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_bad_schema_is_refused_with_its_place(schema: Any, pointer: str | None, words: str) -> None:
    started = time.monotonic()
    error = refusal("json_schema", schema)
    assert words in error.message
    assert pointer is None or error.pointer == pointer
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("[a-z", "missing ']'"),
        ("(a", "missing ')'"),
        ("a)", "unbalanced"),
        ("*a", "nothing to repeat"),
        ("a{3,2}", "out of order"),
        ("(?!a)", "look-ahead"),
        ("a{,3}", "write {0,3}"),
        ("(a{1,1000}){1,1000}", "repetitions"),
        ("(" * 100_000, "deeply"),
        ("[^\\s\\S]", "no text"),
        ("(?i)a", "inline flags"),
    ],
)
def test_a_bad_pattern_is_refused_with_its_position(pattern: str, words: str) -> None:
    assert words in refusal("regex", pattern).message


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("", "empty"),
        ("root ::= a", "'a' used in line 1, column 10 is not defined"),
        ('start ::= "a"', "no rule named root"),
        ('root ::= ("a"', "is not closed"),
        ('root ::= "a")', "closes nothing"),
        ('root ::= "a', "string opened in line 1"),
        ("root ::= [a-z", "character class opened"),
        ("root ::= " + "(" * 100_000, "deeper than 200"),
        ("no grammar at all", "no rule"),
        ('start: ("a"', "is not closed"),
    ],
)
def test_a_bad_grammar_is_refused_with_its_line(grammar: str, words: str) -> None:
    assert words in refusal("ebnf", grammar).message


@pytest.mark.parametrize(
    ("tag", "pointer"),
    [
        ([], ""),
        ({"format": {"type": "nonsense"}}, "/format/type"),
        ({"format": {"type": "json_schema", "json_schema": {"type": "strnig"}}}, "/format/json_schema/type"),
        (
            {"format": {"type": "sequence", "elements": [{"type": "regex", "pattern": "("}]}},
            "/format/elements/0/pattern",
        ),
        ({"format": {"type": "grammar", "grammar": "root ::= x"}}, "/format/grammar"),
        ({"format": {"type": "grammar", "grammar": "root ::= [z-a]"}}, "/format/grammar"),
        ({"format": {"type": "grammar", "grammar": "start: NOWHERE", "syntax": "lark"}}, "/format/grammar"),
        ({"structures": [], "triggers": ["<"]}, "/structures"),
        ({"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["["]}, "/structures/0/begin"),
        (
            {"structures": [{"begin": "<f>", "schema": {"uniqueItems": True}, "end": "</f>"}], "triggers": ["<f"]},
            "/structures/0/schema/uniqueItems",
        ),
        (
            {"format": {"type": "qwen_xml_parameter", "json_schema": {"properties": {"a": {"pattern": "x"}}}}},
            "/format/json_schema/properties/a/pattern",
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_bad_structural_tag_is_refused_with_its_place(tag: Any, pointer: str) -> None:
    assert refusal("structural_tag", tag).pointer == pointer


def test_lenient_lists_what_is_not_enforced_instead_of_refusing() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "idn-hostname"}}}
    prepared = prepare(GrammarSpec(kind="json_schema", value=json.dumps(schema), lenient=True))
    assert [notice.pointer for notice in prepared.notices] == ["/properties/a/format"]


@pytest.mark.parametrize(
    ("keywords", "pointer"),
    [
        ({"uniqueItems": True}, "/properties/a/uniqueItems"),
        ({"uniqueItems": True, "contains": {"const": "x"}}, "/properties/a/uniqueItems"),
    ],
)
def test_lenient_serves_an_array_without_what_cannot_be_counted(keywords: dict[str, Any], pointer: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, **keywords}}}
    assert refusal("json_schema", schema).pointer == pointer
    prepared = prepare(GrammarSpec(kind="json_schema", value=json.dumps(schema), lenient=True))
    assert [notice.pointer for notice in prepared.notices] == [pointer]


def test_lenient_forgives_no_mistake() -> None:
    assert refusal("json_schema", {"type": "strnig"}, lenient=True).pointer == "/type"


def test_a_wide_schema_is_served() -> None:
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2_000)}}
    assert prepare(GrammarSpec(kind="json_schema", value=json.dumps(schema))).backend == "llguidance"


def test_fifty_thousand_enum_values_are_served_quickly() -> None:
    started = time.monotonic()
    prepare(GrammarSpec(kind="json_schema", value=json.dumps({"enum": [f"value {i}" for i in range(50_000)]})))
    assert time.monotonic() - started < 10


def test_deep_one_of_stays_bounded() -> None:
    schema: Any = {"type": "string"}
    for level in range(10):
        one = {"type": "object", "properties": {f"a{level}": schema}, "required": [f"a{level}"]}
        other = {"type": "object", "properties": {f"b{level}": schema}, "required": [f"b{level}"]}
        schema = {"oneOf": [one, other]}
    started = time.monotonic()
    with contextlib.suppress(SchemaError):  # a refusal is as good as an answer
        prepare(GrammarSpec(kind="json_schema", value=json.dumps(schema)))
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_preparing_takes_time_in_proportion_to_the_properties(backend: str) -> None:
    def seconds(count: int) -> float:
        text = json.dumps({"properties": {f"k{i}": {"type": "string"} for i in range(count)}})
        started = time.process_time()
        prepare(GrammarSpec(kind="json_schema", value=text, backend=backend))
        return time.process_time() - started

    few, many = ([seconds(count) for _ in range(3)] for count in (100, 1_000))
    assert min(many) < 25 * sorted(few)[1]  # 100 times where each looks at all of them

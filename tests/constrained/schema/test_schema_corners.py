"""Corners where nothing is left to choose from, and conditions that do not depend on one another."""

# ruff: noqa: E501 - a table reads best with one case a line

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from constrained.compile.walk import legal_token_ids
from constrained.engines.auto import AutoGrammarBackend
from constrained.errors import InvalidGrammarError
from constrained.preparation import SchemaError, prepare
from constrained.spec import GrammarSpec

_ENGLISH_AND_FRENCH = {
    "type": "object",
    "propertyNames": {"enum": ["en", "fr"]},
    "additionalProperties": {"type": "string"},
}


@pytest.mark.parametrize(
    ("schema", "last"),
    [
        (_ENGLISH_AND_FRENCH, '{"en":"a","fr":"b"'),
        ({"type": "array", "items": _ENGLISH_AND_FRENCH}, '[{"en":"a","fr":"b"'),
        ({**_ENGLISH_AND_FRENCH, "required": ["en", "fr"]}, '{"en":"a","fr":"b"'),
        ({**_ENGLISH_AND_FRENCH, "minProperties": 2}, '{"en":"a","fr":"b"'),
        ({"type": "object", "propertyNames": {"maxLength": 0}}, '{"":null'),
        ({"type": "object", "propertyNames": {"pattern": "^[ab]$"}}, '{"a":null,"b":null'),
        ({"type": "array", "prefixItems": [{}, {}], "items": False}, "[null,true"),
        ({"type": "array", "uniqueItems": True, "items": {"enum": [1, 2]}}, "[1,2"),
    ],
)  # fmt: skip
def test_after_the_last_of_a_list_no_comma_follows(backends: AutoGrammarBackend, schema: Any, last: str) -> None:
    spec = GrammarSpec(kind="json_schema", value=json.dumps(schema))
    for backend in ("llguidance", "xgrammar") if "uniqueItems" not in schema else ("llguidance",):
        state = backends.compile(GrammarSpec(kind=spec.kind, value=spec.value, backend=backend)).grammar.copy()
        for byte in _in_written_order(last, state):
            state.accept_token(byte)
        assert set(map(int, legal_token_ids(state))) <= set(b" \t\r\n}]")


def _in_written_order(text: str, state: Any) -> bytes:
    """Listed names stand behind required ones in an order of the schema's own."""
    swapped = text.replace('"en":"a","fr":"b"', '"fr":"a","en":"b"')
    probe = state.copy()
    for byte in text.encode():
        if byte not in legal_token_ids(probe):
            return swapped.encode()
        probe.accept_token(byte)
    return text.encode()


_ARRAYS = [[], [True], [None], [True, None], [1], ["x"], ["x", 1], [1, "x"], [1, 2], ["x", "x"], [None, None, True]]
_OBJECTS: list[Any] = [{}, {"a": 1}, {"en": ""}, {"": 1}, {"a": "a"}, {"a": 5}]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "contains": {"type": "boolean"}, "minContains": 0, "unevaluatedItems": {"type": "null"}},
        {"type": "array", "allOf": [{"contains": {"const": "x"}}], "unevaluatedItems": {"type": "integer"}},
        {"type": "array", "prefixItems": [{"type": "integer"}], "contains": {"const": "x"}, "unevaluatedItems": False},
        {"type": "array", "prefixItems": [{}, {}], "items": False, "contains": {"const": 1}},
        {"type": "array", "contains": {"const": 1}, "maxContains": 1, "maxItems": 2},
    ],
)
def test_contains_counts_as_looked_at_and_leads_to_no_dead_end(takes: Any, schema: Any) -> None:
    _agrees(takes, schema, _ARRAYS)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "propertyNames": False},
        {"type": "object", "propertyNames": {"enum": []}},
        {"type": "object", "propertyNames": {"type": "integer"}},
        {"type": "object", "propertyNames": {"maxLength": 0}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a$", "allOf": [{"pattern": "^b$"}]}}},
        {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 4, "multipleOf": 5}}},
        {"type": "object", "properties": {"a": {"type": "number", "minimum": 1, "maximum": 4, "multipleOf": 7.5}}},
        {"type": "object", "properties": {"a": {"type": "array", "items": {"enum": [1]}, "uniqueItems": True, "minItems": 2}}},
        {"type": "object", "properties": {"a": {"type": "array", "maxItems": 1, "contains": {"type": "null"}, "minContains": 2}}},
    ],
)  # fmt: skip
def test_a_key_that_can_have_no_value_is_left_out(takes: Any, schema: Any) -> None:
    _agrees(takes, schema, _OBJECTS)


def _closed(names: list[str]) -> list[Any]:
    return [
        {"type": "object", "properties": {name: {"type": "string"}}, "additionalProperties": False} for name in names
    ]


_KEYS = [f"k{i}" for i in range(10)]
_MANY: dict[str, Any] = {
    "closed": {"oneOf": _closed(_KEYS)},
    "open": {"oneOf": [{"properties": {key: {"type": "string"}}, "required": [key]} for key in _KEYS]},
    "dependent": {"dependentRequired": {key: [f"x{key}"] for key in _KEYS}},
    "declared apart": {
        "type": "object",
        "properties": {key: {} for key in [*_KEYS, *(f"x{key}" for key in _KEYS)]},
        "dependentRequired": {key: [f"x{key}"] for key in _KEYS},
    },
    "if": {
        "properties": {key: {"enum": ["a", "b"]} for key in _KEYS},
        "allOf": [
            {
                "if": {"properties": {key: {"const": "a"}}, "required": [key]},
                "then": {"required": [f"x{key}"]},
                "else": {"properties": {f"x{key}": {"type": "null"}}},
            }
            for key in _KEYS
        ],
    },
    "any": {"allOf": [{"anyOf": [{"required": [key]}, {"required": [f"x{key}"]}]} for key in _KEYS]},
}  # fmt: skip


@pytest.mark.parametrize("name", _MANY)
def test_independent_conditions_do_not_multiply(takes: Any, name: str) -> None:
    values: list[Any] = [
        {}, 1, {"k0": "a"}, {"k9": "a"}, {"k0": 1}, {"k0": "a", "k1": "a"}, {"k0": "b", "xk0": None},
        {"k0": "b", "xk0": 1}, {"k0": "a", "xk0": 1}, {"k0": "a", "k9": "a", "xk0": 1, "xk9": 1}, {"xk3": 1},
        {"k0": "a", "k9": "a", "xk0": 1}, {"other": 1}, {"k3": "a", "other": 1}, {f"xk{i}": None for i in range(10)},
    ]  # fmt: skip
    _agrees(takes, _MANY[name], values)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "not": {"patternProperties": {"^x": {"type": "string"}}}},
        {
            "type": "object",
            "patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "number"}},
            "not": {"patternProperties": {"x": {"type": "string"}}},
        },
    ],
)
def test_a_key_against_a_pattern_may_match_others_too(takes: Any, schema: Any) -> None:
    values: list[Any] = [{}, {"x": "a"}, {"x": 1}, {"ax": 1}, {"ax": "a"}, {"xb": 1.5}, {"xb": "a"}, {"c": 1, "x": 1}]
    _agrees(takes, schema, values)


def test_lenient_leaves_alternatives_out_that_multiply() -> None:
    schema = {"type": "string", "allOf": [{"anyOf": [{"pattern": f"n{i}"}, {"maxLength": i}]} for i in range(12)]}
    with pytest.raises(SchemaError, match="multiply"):
        prepare(GrammarSpec(kind="json_schema", value=json.dumps(schema)))
    notices = prepare(GrammarSpec(kind="json_schema", value=json.dumps(schema), lenient=True)).notices
    assert {notice.pointer for notice in notices} <= {f"/allOf/{i}/anyOf" for i in range(12)}
    assert 0 < len(notices) < 12


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, True),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"], "additionalProperties": False}, False),
    ],
)
def test_a_required_name_that_cannot_occur_is_named(backends: AutoGrammarBackend, schema: Any, strict: bool) -> None:
    for place, whole in (("/required", schema), ("/properties/o/required", {"properties": {"o": schema}})):
        if place == "/required" or strict:
            with pytest.raises(InvalidGrammarError, match="'b' is required but not declared") as caught:
                backends.compile(GrammarSpec(kind="json_schema", value=json.dumps(whole), strict=strict))
            assert caught.value.pointer == place


@pytest.mark.parametrize("keyword", ["contentMediaType", "contentEncoding"])
def test_content_is_an_annotation_where_no_older_draft_is_named(takes: Any, keyword: str) -> None:
    schema = {"type": "string", keyword: "base64"}
    assert takes(schema)("{")
    with pytest.raises(InvalidGrammarError):
        takes({"$schema": "http://json-schema.org/draft-07/schema#", **schema})


def _agrees(takes: Any, schema: Any, values: list[Any]) -> None:
    take, oracle = takes(schema), jsonschema.Draft202012Validator(schema)
    for value in values:
        assert take(value) == oracle.is_valid(value), value

"""Every keyword, alone and combined, holds: what the oracle calls valid is taken, what it calls invalid is not."""

# ruff: noqa: E501 - a table reads best with one case a line

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

VALUES: list[Any] = [
    None, True, False, 0, 1, 2, 3, 5, 6, 7, 10, -1, -7, 0.5, 1.5, 2.25, -0.25, 100, "", "a", "b", "ab", "abc", "abcd",
    "é", "a\nb", 'q"\\', "12", "foo", "2024-02-29", "2023-02-29",
    [], [1], [1, 2], [2, 1], [1, 1], ["a"], ["a", "b"], ["a", "a"], ["b", "a"], [1, "a"], ["a", 1], [1, 2, 3], [5, "x", 6],
    [[]], [None],
    {}, {"a": 1}, {"a": "x"}, {"b": 1}, {"a": 1, "b": 2}, {"a": 1, "b": "x"}, {"ab": 1}, {"c": 1}, {"a": 1, "c": 2},
    {"a": None}, {"a": {"a": 1}}, {"a": {"a": "x"}}, {"x1": 1}, {"x1": "s"}, {"x1": 1, "x2": 2}, {"kind": "circle", "r": 1},
    {"kind": "square", "r": 1}, {"kind": "square", "side": 2}, {"kind": "circle"}, {"a": 1, "b": 2, "c": 3},
    {"zz": 1, "a": 2}, {"a": [1, 2]}, {"en": "x"}, {"de": "x"}, {"a": True, "b": False}, {"": 1},
]  # fmt: skip

OBJECT = {"type": "object"}
SCHEMAS: list[Any] = [
    True,
    {},
    {"type": ["integer", "string"]},
    {"type": "number", "minimum": 1.5, "exclusiveMaximum": 7},
    {"type": "integer", "exclusiveMinimum": -7, "maximum": 6},
    {"$schema": "http://json-schema.org/draft-04/schema#", "type": "number", "minimum": 1, "exclusiveMinimum": True},
    {"type": "integer", "multipleOf": 3},
    {"type": "integer", "multipleOf": 3, "minimum": 1, "maximum": 7},
    {"type": "number", "multipleOf": 0.25},
    {"type": "number", "multipleOf": 0.5},
    {"type": "integer", "not": {"multipleOf": 2}, "minimum": -10, "maximum": 10},
    {"type": "number", "not": {"type": "integer"}},
    {"type": "integer", "not": {"enum": [1, 5]}},
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"type": "string", "pattern": "^[a-c]+$", "minLength": 2, "maxLength": 3},
    {"type": "string", "pattern": "b"},
    {"type": "string", "pattern": "^(?!ab)a"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "date", "pattern": "9$"},
    {"type": "string", "not": {"pattern": "b"}},
    {"type": "string", "not": {"enum": ["a", "ab"]}},
    {"minLength": 3},
    {"maximum": 1},
    {"enum": [1, "a", None, [1, 2], {"a": 1}]},
    {"const": {"a": 1, "b": 2}},
    {"not": {"const": {"a": 1}}},
    {"enum": ["a", "abc", 1], "type": "string"},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
    {"type": "array", "prefixItems": [{"type": "integer"}]},
    {"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "string"}, "$schema": "http://json-schema.org/draft-07/schema#"},
    {"type": "array", "contains": {"type": "string"}},
    {"type": "array", "contains": {"type": "integer"}, "minContains": 2, "maxContains": 2},
    {"type": "array", "contains": {"const": 1}, "maxItems": 2},
    {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
    {"type": "array", "items": {"enum": ["a", "b", 1]}, "uniqueItems": True, "minItems": 1, "maxItems": 2},
    {"type": "array", "uniqueItems": True, "maxItems": 1},
    {"type": "array", "not": {"items": {"type": "integer"}}},
    {**OBJECT, "properties": {"a": {"type": "integer"}}},
    {**OBJECT, "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "additionalProperties": False},
    {**OBJECT, "properties": {"a": True}, "required": ["a", "c"]},
    {**OBJECT, "required": ["zz"]},
    {**OBJECT, "properties": {"a": False}},
    {**OBJECT, "patternProperties": {"^x": {"type": "integer"}}},
    {**OBJECT, "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
    {**OBJECT, "patternProperties": {"^(en|fr)$": {"type": "string"}}, "additionalProperties": False, "minProperties": 1},
    {**OBJECT, "patternProperties": {"a": {"type": "integer"}, "b": {"minimum": 2}}},
    {**OBJECT, "properties": {"a": {"type": "integer"}}, "patternProperties": {"a": {"maximum": 1}}},
    {**OBJECT, "propertyNames": {"maxLength": 1}},
    {**OBJECT, "propertyNames": {"enum": ["a", "b"]}},
    {**OBJECT, "not": {"propertyNames": {"maxLength": 1}}},
    {**OBJECT, "minProperties": 2},
    {**OBJECT, "maxProperties": 1},
    {**OBJECT, "properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": False, "minProperties": 2, "maxProperties": 2},
    {**OBJECT, "properties": {"a": {}, "b": {}}, "minProperties": 1, "maxProperties": 2},
    {**OBJECT, "not": {"required": ["a"]}},
    {**OBJECT, "not": {"properties": {"a": {"type": "integer"}}}},
    {**OBJECT, "not": {"additionalProperties": {"type": "integer"}}},
    {**OBJECT, "dependentRequired": {"a": ["b"]}},
    {**OBJECT, "dependentSchemas": {"a": {"properties": {"b": {"type": "string"}}}}},
    {**OBJECT, "dependencies": {"a": ["b"]}, "$schema": "http://json-schema.org/draft-07/schema#"},
    {"anyOf": [{"type": "integer"}, {"minLength": 2}]},
    {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]},
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
    {"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}], "type": "integer", "minimum": 0, "maximum": 20},
    {"allOf": [{"type": "string", "minLength": 2}, {"pattern": "^a"}, {"maxLength": 3}]},
    {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"maximum": 1}, "b": {}}, "required": ["a"]}]},
    {"if": {"properties": {"kind": {"const": "circle"}}, "required": ["kind"]}, "then": {"required": ["r"]}, "else": {"required": ["side"]}},
    {"type": "object", "if": {"properties": {"kind": {"const": "circle"}}}, "then": {"required": ["r"]}},
    {"if": {"type": "integer"}, "then": {"minimum": 2}, "else": {"maxLength": 1}},
    {"not": {"type": ["integer", "object"]}},
    {"not": {"anyOf": [{"type": "string"}, {"minimum": 2}]}},
    {"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"a": {"$ref": "#/$defs/t"}}, "additionalProperties": False}}},
    {"$ref": "#/$defs/t", "maximum": 2, "$defs": {"t": {"type": "integer"}}},
    {"$ref": "#here", "$defs": {"t": {"$anchor": "here", "type": "integer"}}},
    {"$defs": {"n": {"$dynamicAnchor": "n", "type": ["integer", "array"], "items": {"$dynamicRef": "#n"}}}, "$ref": "#/$defs/n"},
    {"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False, "type": "object"},
    {"anyOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"properties": {"b": {"const": 2}}, "required": ["b"]}], "unevaluatedProperties": False},
    {"allOf": [{"prefixItems": [True]}], "unevaluatedItems": {"type": "string"}, "type": "array"},
]  # fmt: skip


def _validator(schema: Any) -> Any:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return kind(schema, format_checker=kind.FORMAT_CHECKER)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:90])
def test_exactly_the_valid_values_are_taken(takes: Any, schema: Any) -> None:
    take = takes(schema)
    oracle = _validator(schema)
    wrong = [(value, oracle.is_valid(value)) for value in VALUES if take(value) != oracle.is_valid(value)]
    assert wrong == []


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:90])
def test_xgrammar_takes_exactly_the_valid_values_or_refuses(takes: Any, schema: Any) -> None:
    from constrained.errors import GrammarError

    try:
        take = takes(schema, backend="xgrammar")
    except GrammarError:
        return
    oracle = _validator(schema)
    wrong = [(value, oracle.is_valid(value)) for value in VALUES[::3] if take(value) != oracle.is_valid(value)]
    assert wrong == []

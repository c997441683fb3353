"""Which JSON Schema keywords exist, where they hold subschemas, and what type their values must have."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})

SUBSCHEMA = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "else",
        "if",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
SUBSCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SUBSCHEMA_MAPS = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})

LEGACY_DRAFTS = (4, 6, 7)
"""Drafts in which ``$ref`` hides its neighbours and ``items`` may be a list."""


def draft_of(uri: object) -> int | None:
    """Draft number of a ``$schema`` (``2019`` and ``2020`` for the newer ones); ``None`` when it is none of them."""
    if not isinstance(uri, str):
        return None
    for mark, draft in (("draft-03", 4), ("draft-04", 4), ("draft-06", 6), ("draft-07", 7)):
        if mark in uri and "json-schema.org" in uri:
            return draft
    for mark, draft in (("2019-09", 2019), ("2020-12", 2020)):
        if mark in uri and "json-schema.org" in uri:
            return draft
    return None


def is_number(value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _is_schema(value: object) -> bool:
    return isinstance(value, dict | bool)


def _is_count(value: object) -> bool:
    whole = isinstance(value, Decimal) and value == value.to_integral_value()
    return is_number(value) and (isinstance(value, int) or whole) and value >= 0  # type: ignore[operator]


def _is_string(value: object) -> bool:
    return isinstance(value, str)


def _is_string_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_schema_map(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_schema_list(value: object) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(_is_schema, value))


def _is_bound_flag(value: object) -> bool:
    return is_number(value) or isinstance(value, bool)


def _is_items(value: object) -> bool:
    return _is_schema(value) or (isinstance(value, list) and all(map(_is_schema, value)))


def _is_dependencies(value: object) -> bool:
    return isinstance(value, dict) and all(
        _is_schema(one) or _is_string_list(one) or isinstance(one, str) for one in value.values()
    )


def _is_dependent_required(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_string_list, value.values()))


def _is_positive(value: object) -> bool:
    return is_number(value) and value > 0  # type: ignore[operator]


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "$anchor": (_is_string, "a string"),
    "$dynamicAnchor": (_is_string, "a string"),
    "$dynamicRef": (_is_string, "a string"),
    "$id": (_is_string, "a string"),
    "$recursiveAnchor": (lambda v: isinstance(v, bool), "true or false"),
    "$recursiveRef": (_is_string, "a string"),
    "$ref": (_is_string, "a string"),
    "dependencies": (_is_dependencies, "an object of schemas or lists of names"),
    "dependentRequired": (_is_dependent_required, "an object of lists of names"),
    "enum": (lambda v: isinstance(v, list), "a list"),
    "exclusiveMaximum": (_is_bound_flag, "a number"),
    "exclusiveMinimum": (_is_bound_flag, "a number"),
    "format": (_is_string, "a string"),
    "items": (_is_items, "a schema or a list of schemas"),
    "maximum": (is_number, "a number"),
    "minimum": (is_number, "a number"),
    "multipleOf": (_is_positive, "a number above zero"),
    "pattern": (_is_string, "a string"),
    "required": (_is_string_list, "a list of property names"),
    "uniqueItems": (lambda v: isinstance(v, bool), "true or false"),
}
_CHECKS |= dict.fromkeys(SUBSCHEMA, (_is_schema, "a schema (an object or a boolean)"))
_CHECKS |= dict.fromkeys(SUBSCHEMA_LISTS, (_is_schema_list, "a list of at least one schema"))
_CHECKS |= dict.fromkeys(SUBSCHEMA_MAPS, (_is_schema_map, "an object whose values are schemas"))
_CHECKS |= dict.fromkeys(
    ("maxContains", "maxItems", "maxLength", "maxProperties", "minContains", "minItems", "minLength", "minProperties"),
    (_is_count, "a whole number of at least zero"),
)


def type_complaint(keyword: str, value: object) -> str | None:
    """What is wrong with the type of a keyword's value, or ``None``."""
    if keyword == "type":
        names = value if isinstance(value, list) else [value]
        for name in names:
            if not isinstance(name, str) or name not in TYPES:
                return f"unknown type {name!r}: a schema's type is one of {', '.join(sorted(TYPES))}"
        return None if names else "type is an empty list"
    check = _CHECKS.get(keyword)
    if check is None or check[0](value):
        return None
    return f"{keyword!r} must be {check[1]}"

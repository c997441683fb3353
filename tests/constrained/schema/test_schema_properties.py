"""Random schemas and values: compiled grammars agree with an independent validator, or the schema is refused."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from constrained.errors import GrammarError
from constrained.json_schema.solving.numbers import Bound, integers_between, numbers_between, spelled
from constrained.patterns import tree
from constrained.patterns.derivative import is_empty, matches
from constrained.patterns.language import search_language

_NAMES = st.sampled_from(["a", "b", "ab", "x"])
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 6),
    st.sampled_from([0.5, -1.5, 2.25]),
    st.sampled_from(["", "a", "b", "ab", "xyz"]),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_NAMES, inner, max_size=3)),
    max_leaves=6,
)
_PATTERNS = st.sampled_from(["^a", "b$", "^[ab]+$", "x", "^$", "^(?!a)", "a|^b"])


def _keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    schemas = st.lists(inner, min_size=1, max_size=2)
    types = ["null", "boolean", "integer", "number", "string", "array", "object"]
    optional: dict[str, st.SearchStrategy[Any]] = {
        "type": st.one_of(
            st.sampled_from(types), st.lists(st.sampled_from(types), min_size=1, max_size=3, unique=True)
        ),
        "enum": st.lists(_VALUES, min_size=1, max_size=3),
        "const": _VALUES,
        "minimum": st.integers(-2, 3),
        "exclusiveMaximum": st.sampled_from([0, 2, 2.25, 5]),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(0, 3),
        "pattern": _PATTERNS,
        "items": inner,
        "prefixItems": schemas,
        "minItems": st.integers(0, 2),
        "maxItems": st.integers(0, 3),
        "contains": inner,
        "properties": st.dictionaries(_NAMES, inner, max_size=2),
        "patternProperties": st.dictionaries(_PATTERNS, inner, max_size=1),
        "additionalProperties": inner,
        "propertyNames": st.sampled_from([{"maxLength": 1}, {"pattern": "a"}, {"enum": ["a", "b"]}]),
        "required": st.lists(_NAMES, max_size=2, unique=True),
        "minProperties": st.integers(0, 2),
        "maxProperties": st.integers(0, 2),
        "dependentRequired": st.dictionaries(_NAMES, st.lists(_NAMES, max_size=1), max_size=1),
        "dependentSchemas": st.dictionaries(_NAMES, inner, max_size=1),
        "allOf": schemas,
        "anyOf": schemas,
        "oneOf": schemas,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "unevaluatedProperties": st.booleans(),
    }
    return st.lists(st.sampled_from(sorted(optional)), max_size=3, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({name: optional[name] for name in chosen})
    )


_SCHEMAS = st.recursive(st.booleans(), _keywords, max_leaves=5)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=_SCHEMAS, values=st.lists(_VALUES, min_size=4, max_size=8))
def test_a_compiled_schema_takes_exactly_the_valid_values(takes: Any, schema: Any, values: list[Any]) -> None:
    try:
        take = takes(schema)
    except GrammarError:
        assume(False)
    oracle = jsonschema.Draft202012Validator(schema)
    for value in values:
        assert take(value) == oracle.is_valid(value), value


@settings(max_examples=150, deadline=None)
@given(
    pattern=st.from_regex(r"\A(\^)?([abc.]|\[ab\]|\(a\|bc\)|\(\?!b\)|\(\?=a\)|[ab][*+?]|\$\|){0,5}(\$)?\Z"),
    data=st.data(),
)
def test_a_pattern_means_what_python_says(pattern: str, data: st.DataObject) -> None:
    language = search_language(pattern)
    for text in data.draw(st.lists(st.text("abc", max_size=5), min_size=5, max_size=15)):
        assert matches(language, text) == bool(re.search(pattern, text)), text


@given(st.integers(-2000, 2000), st.integers(0, 3000), st.lists(st.integers(-5000, 5000), min_size=5))
def test_a_range_of_integers_holds_exactly_its_members(low: int, width: int, values: list[int]) -> None:
    language = integers_between(low, low + width)
    for value in [*values, low - 1, low, low + width, low + width + 1]:
        assert matches(language, str(value)) == (low <= value <= low + width)


@given(
    st.decimals(-200, 200, places=2), st.decimals(0, 100, places=3), st.booleans(), st.booleans(),
    st.lists(st.decimals(-250, 250, places=3), min_size=5),
)  # fmt: skip
def test_a_range_of_numbers_holds_exactly_its_members(
    low: Any, width: Any, open_low: bool, open_high: bool, values: list[Any]
) -> None:
    high = low + width
    assume(low < high)
    language = numbers_between(Bound(low, open_low), Bound(high, open_high))
    for value in [*values, low, high]:
        inside = low < value < high or (value == low and not open_low) or (value == high and not open_high)
        assert matches(language, spelled(value)) == inside


@given(st.lists(_PATTERNS, min_size=1, max_size=3), st.lists(_PATTERNS, max_size=2))
def test_emptiness_is_never_claimed_of_a_language_with_a_member(positive: list[str], negative: list[str]) -> None:
    parts = [search_language(one) for one in positive] + [tree.complement(search_language(one)) for one in negative]
    language = tree.both(parts)
    members = [text for text in ("", "a", "b", "ab", "ba", "aab", "xb", "bx", "axb") if matches(language, text)]
    assert not (members and is_empty(language))

"""Numbers end: a model that writes digit after digit comes to a place where it cannot."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.base import BaseGrammarObject
from constrained.errors import TokenRejectedError
from constrained.spec import GrammarSpec

ENGINES = ["llguidance", "xgrammar"]
ENDLESS: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "integer"}, "", "7"),
    ({"type": "integer"}, "-", "7"),
    ({"type": "integer", "minimum": -5}, "", "7"),
    ({"type": "integer", "minimum": 123456}, "", "7"),
    ({"type": "number"}, "", "7"),
    ({"type": "number"}, "0.", "0"),
    ({"type": "number"}, "1e", "0"),
    ({"type": "number", "minimum": 0}, "", "7"),
    ({"type": "number", "minimum": 0}, "0.", "0"),
    ({"type": "number", "exclusiveMinimum": 0.25}, "0.25", "0"),
    ({"type": "number", "minimum": 0, "maximum": 1}, "0.", "3"),
    ({"type": "number", "maximum": 1.5}, "1.", "0"),
    ({"type": "number", "multipleOf": 0.01}, "", "7"),
    ({"type": "number", "multipleOf": 0.01}, "0.01", "0"),
    ({"type": "number", "not": {"type": "integer"}}, "0.", "1"),
    ({"type": "number", "not": {"const": 3}}, "3.", "0"),
    ({"type": "string", "format": "duration"}, '"P', "7"),
    ({"type": "string", "format": "date-time"}, '"2020-01-01T00:00:00.', "7"),
    ({"type": "string", "format": "relative-json-pointer"}, '"', "7"),
]
ONLY_LLGUIDANCE: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "integer", "multipleOf": 7}, "", "7"),
    ({"type": "number", "multipleOf": 0.3}, "", "3"),
    ({"type": "integer", "multipleOf": 7, "minimum": 100}, "", "7"),
]
MANY = 45


def compiled(engines: AutoGrammarBackend, schema: dict[str, Any], engine: str) -> BaseGrammarObject:
    return engines.compile(GrammarSpec(kind="json_schema", value=json.dumps(schema), backend=engine)).grammar


def takes(start: BaseGrammarObject, text: str, *, whole: bool = True) -> bool:
    grammar = start.copy()
    try:
        for byte in text.encode():
            grammar.accept_token(byte)
    except TokenRejectedError:
        return False
    return grammar.is_accepting() if whole else True


@pytest.mark.parametrize(
    ("engine", "schema", "before", "digit"),
    [(engine, *case) for engine in ENGINES for case in ENDLESS] + [("llguidance", *case) for case in ONLY_LLGUIDANCE],
)
def test_digits_come_to_an_end(
    engines: AutoGrammarBackend, engine: str, schema: dict[str, Any], before: str, digit: str
) -> None:
    start = compiled(engines, schema, engine)
    assert takes(start, before + digit, whole=False)
    assert not takes(start, before + digit * MANY, whole=False)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_number_is_read_as_infinity(engines: AutoGrammarBackend, engine: str) -> None:
    start = compiled(engines, {"type": "number"}, engine)
    for text in ("1e288", "9" * 20 + "." + "9" * 20 + "E+288", "-1e+008", "1e-00308", "0.1e00", "1.5"):
        assert takes(start, text), text
        assert math.isfinite(float(text))
    assert not [text for text in ("1e289", "1e308", "1e999", "-1E+999", "1e0999") if takes(start, text)]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_large_bound_has_numbers_beyond_it(engines: AutoGrammarBackend, engine: str) -> None:
    start = compiled(engines, {"type": "integer", "minimum": 10**30 - 1}, engine)
    assert takes(start, "9" * 30)
    assert takes(start, "1" + "0" * 30)
    assert not takes(start, "9" * 29)
    start = compiled(engines, {"type": "number", "maximum": -(10**25) - 0.5}, engine)
    assert takes(start, "-1" + "0" * 25 + ".5") or takes(start, "-2" + "0" * 25)


def test_any_number_of_digits_can_be_had(environment_with: Callable[..., Any]) -> None:
    engines = AutoGrammarBackend(environment_with(json_number_digits=0))
    assert takes(compiled(engines, {"type": "number"}, "llguidance"), "1" * 400 + "." + "1" * 400)
    assert takes(compiled(engines, {"type": "string", "format": "duration"}, "llguidance"), f'"P{"1" * 400}D"')
    engines = AutoGrammarBackend(environment_with(json_number_digits=3))
    start = compiled(engines, {"type": "number"}, "llguidance")
    assert takes(start, "123.456")
    assert not takes(start, "1234")

"""The type of a value that stands without quotes is the declared one, however it is declared."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.answer.events import collect
from server.tools.properties import declared_properties
from server.tools.qwen3_coder import Qwen3CoderParser

DEFINITIONS = {"Code": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}, "Count": {"type": "integer"}}

CASES: list[tuple[Any, str, Any]] = [
    ({"type": "string"}, "42", "42"),
    ({"type": "string", "maxLength": 5}, "42", "42"),
    ({"type": "string", "pattern": "^[0-9]+$"}, "007", "007"),
    ({"type": "string", "maxLength": 5}, '"42"', "42"),
    ({"enum": ["1", "2"]}, "1", "1"),
    ({"const": "true"}, "true", "true"),
    ({"$ref": "#/$defs/Code"}, "42", "42"),
    ({"$ref": "#/$defs/Count"}, "42", 42),
    ({"allOf": [{"$ref": "#/$defs/Code"}, {"maxLength": 5}]}, "42", "42"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "42", "42"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "42", 42),
    ({"type": ["string", "integer"]}, "42", 42),
    ({"type": ["string", "boolean"]}, "42", "42"),
    ({"type": "boolean"}, "True", True),
    ({"type": "string", "maxLength": 5}, "True", "True"),
    ({"type": "number"}, "1.5", 1.5),
    ({"type": "object"}, '{"a": 1}', {"a": 1}),
    ({"type": "string", "maxLength": 50}, '{"a": 1}', '{"a": 1}'),
    ({"type": "integer"}, "many", "many"),
    ({"$ref": "#/$defs/Loop"}, "42", 42),
    ({}, "42", 42),
    (True, "x", "x"),
]


@pytest.mark.parametrize(("schema", "text", "value"), CASES)
def test_a_value_is_read_as_its_declared_type(schema: Any, text: str, value: Any) -> None:
    parameters = {"type": "object", "properties": {"p": schema}, "$defs": DEFINITIONS}
    parser = Qwen3CoderParser({"f": parameters}, is_constrained=False)
    written = f"<tool_call>\n<function=f>\n<parameter=p>\n{text}\n</parameter>\n</function>\n</tool_call>"
    answer = collect([*parser.add(written), *parser.finish()])
    assert [json.loads(call.arguments) for call in answer.calls] == [{"p": value}]


def test_contradictory_types_leave_the_text_a_text() -> None:
    parameters = {"properties": {"p": {"allOf": [{"type": "string"}, {"type": "integer"}]}}}
    (one,) = declared_properties(parameters)
    assert one.types == frozenset()
    assert one.as_json("42") == "42"

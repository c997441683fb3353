"""Every spelling of a constraint becomes one specification, key order and all."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.chat.protocol import ChatCompletionRequest
from server.errors import BadRequestError
from server.request.constraint_fields import choice_regex, grammar_spec
from server.validation import validate_request

SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"enum": [1, "é"]}}, "required": ["z"]}
SCHEMA_TEXT = '{"type":"object","properties":{"z":{"type":"integer"},"a":{"enum":[1,"é"]}},"required":["z"]}'
OLD_TAG = {"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f"]}
NEW_TAG = {"format": {"type": "const_string", "value": "x"}}


def spec_of(**fields):
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return grammar_spec(validate_request(ChatCompletionRequest, body), max_bytes=10_000)


@pytest.mark.parametrize(
    ("fields", "kind", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type":"object"}'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            "json_schema",
            SCHEMA_TEXT,
        ),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", SCHEMA_TEXT),
        ({"json_schema": SCHEMA}, "json_schema", SCHEMA_TEXT),
        ({"json_schema": True}, "json_schema", "true"),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA_TEXT),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "json_schema", SCHEMA_TEXT),
        ({"structured_outputs": {"json_object": True}}, "json_schema", '{"type":"object"}'),
        ({"regex": "a+"}, "regex", "a+"),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"ebnf": 'root ::= "a"'}, "ebnf", 'root ::= "a"'),
        ({"structured_outputs": {"grammar": "start: A"}}, "ebnf", "start: A"),
        ({"choice": ["yes", "no.", "yes"]}, "regex", r"(yes|no\.)"),
        ({"structured_outputs": {"choice": ["a|b"]}}, "regex", r"(a\|b)"),
        (
            {"response_format": {"type": "structural_tag", **OLD_TAG}},
            "structural_tag",
            json.dumps({"type": "structural_tag", **OLD_TAG}, separators=(",", ":")),
        ),
        (
            {"response_format": {"type": "structural_tag", **NEW_TAG}},
            "structural_tag",
            json.dumps({"type": "structural_tag", **NEW_TAG}, separators=(",", ":")),
        ),
        (
            {"structured_outputs": {"structural_tag": json.dumps({"type": "structural_tag", **NEW_TAG})}},
            "structural_tag",
            json.dumps({"type": "structural_tag", **NEW_TAG}, separators=(",", ":")),
        ),
    ],
)
def test_each_spelling_becomes_its_specification(fields, kind, value):
    spec = spec_of(**fields)
    assert (spec.kind, spec.value) == (kind, value)


def test_no_constraint_is_none():
    assert spec_of() is None
    assert spec_of(response_format={"type": "text"}) is None


def test_strict_lenient_and_backend_are_passed_on():
    form = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {}}}
    spec = spec_of(response_format=form, lenient=True, grammar_backend="outlines")
    assert spec.strict
    assert spec.lenient
    assert spec.backend == "outlines"
    assert not spec_of(json_schema={}).strict


@pytest.mark.parametrize(
    "pair",
    [
        {"regex": "a", "ebnf": "b"},
        {"json_schema": {}, "choice": ["a"]},
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        {"structured_outputs": {"regex": "a", "grammar": "b"}},
    ],
)
def test_two_constraints_are_refused(pair):
    with pytest.raises(BadRequestError, match="one constraint"):
        spec_of(**pair)


@pytest.mark.parametrize("tag", [{}, {**OLD_TAG, **NEW_TAG}, {"structures": []}, {"format": []}])
def test_a_structural_tag_has_one_of_its_two_forms(tag):
    with pytest.raises(BadRequestError):
        spec_of(response_format={"type": "structural_tag", **tag})


@pytest.mark.parametrize("schema", ["s", 1, 1.5, [], None])
def test_a_schema_of_the_wrong_type_is_refused(schema):
    with pytest.raises(BadRequestError, match="schema"):
        spec_of(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})


def test_a_constraint_beyond_the_limit_is_refused():
    with pytest.raises(BadRequestError, match="longer than the limit"):
        spec_of(regex="a" * 10_001)


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5), st.text(max_size=8))
def test_the_pattern_of_choices_matches_them_and_nothing_else(choices, other):
    pattern = re.compile(choice_regex(choices), re.DOTALL)
    assert all(pattern.fullmatch(choice) for choice in choices)
    assert bool(pattern.fullmatch(other)) == (other in choices)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    ("constraint", "field"),
    [
        ({"regex": "a+"}, "regex"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "text"}, "choice": ["a"]}, "choice"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs.json"),
        ({"structured_outputs": {"json_object": True}}, "structured_outputs.json_object"),
    ],
)
def test_the_scheduler_is_told_which_field_to_blame(shared_server, path, constraint, field):
    text = {"prompt": "hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "hi"}]}
    assert shared_server.post(path, {**text, **constraint, "max_tokens": 1}).status_code == 200
    assert shared_server.scheduler.requests()[-1].grammar_field == field

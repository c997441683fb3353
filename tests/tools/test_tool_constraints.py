"""The grammar of a request's tools: what it takes, what it refuses, and that the parsers read what it takes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import xgrammar

from constrained.schema import prepare
from constrained.spec import GrammarSpec
from server.errors import BadRequestError
from server.tools.constraint import tool_constraint
from server.tools.custom import CustomCallParser
from server.tools.definitions import Tool, ToolRequest, read_tools
from server.tools.events import collect
from server.tools.registry import TOOL_PARSERS, tool_parser

sys.path.insert(0, str(Path(__file__).parent))
from tool_texts import SCHEMAS

PLAN = {
    "type": "object",
    "properties": {
        "route": {"$ref": "#/$defs/route"},
        "note": {"type": "string"},
        "mode": {"type": "string", "enum": ["fast", "slow"]},
        "stops": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
    },
    "required": ["note", "route"],
    "$defs": {"route": {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}},
}
CALLS = {
    "hermes": '<tool_call>\n{"name": "plan", "arguments": {"route": {"to": "X"}, "note": "a\\nb"}}\n</tool_call>',
    "json": '{"name": "plan", "arguments": {"route": {"to": "X"}, "note": "a\\nb"}}',
    "llama3_json": '{"name": "plan", "parameters": {"route": {"to": "X"}, "note": "a\\nb"}}',
    "pythonic": '[plan(route={"to": "X"}, note="a\\nb")]',
    "qwen3_coder": '<tool_call>\n<function=plan>\n<parameter=route>\n{"to": "X"}\n</parameter>\n<parameter=note>\na'
    "\nb\n</parameter>\n</function>\n</tool_call>",
    "harmony": '{"name": "plan", "arguments": {"route": {"to": "X"}, "note": "a\\nb"}}',
}
WRONG = {
    "hermes": [
        '<tool_call>\n{"name": "plan", "arguments": {"route": {"to": 1}}}\n</tool_call>',
        '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "plan", "arguments": {"note": "n", "route": {"to": "X"}, "more": 1}}\n</tool_call>',
    ],
    "json": ['{"name": "plan", "arguments": {}}', '{"name": "other", "arguments": {}}', "{"],
    "llama3_json": ['{"name": "plan", "parameters": {}}', '{"name": "other", "parameters": {}}'],
    "pythonic": ['[plan(note="x")]', "[plan(note=3, route={})]", "[other()]", "[1, 2]"],
    "qwen3_coder": [
        "<tool_call>\n<function=plan>\n</function>\n</tool_call>",
        "<tool_call>\n<function=other>\n</function>\n</tool_call>",
    ],
    "harmony": ['{"name": "plan", "arguments": {}}'],
}
AUTO = sorted(set(TOOL_PARSERS) - {"harmony"})


def function(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def offered(*tools: dict[str, Any], choice: Any = None, is_parallel: bool | None = None) -> ToolRequest:
    request = read_tools(
        tools=[Tool.model_validate(tool) for tool in tools],
        tool_choice=choice,
        parallel_tool_calls=is_parallel,
        functions=None,
        function_call=None,
        max_tools=1024,
    )
    assert request is not None
    return request


def spec_of(request: ToolRequest, name: str, answer: GrammarSpec | None = None) -> GrammarSpec:
    constraint = tool_constraint(
        request, tool_parser(name), answer=answer, lenient=False, backend=None, max_bytes=4_000_000
    )
    assert constraint.spec is not None
    return constraint.spec


def compiled(spec: GrammarSpec) -> xgrammar.CompiledGrammar:
    info = xgrammar.TokenizerInfo([bytes([i]) for i in range(256)], xgrammar.VocabType.RAW, stop_token_ids=[0])
    return xgrammar.GrammarCompiler(info, cache_enabled=False).compile_structural_tag(prepare(spec).text)


def takes(grammar: xgrammar.CompiledGrammar, text: str) -> bool:
    matcher = xgrammar.GrammarMatcher(grammar)
    return matcher.accept_string(text) and matcher.is_completed()


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_a_required_call_fits_its_schema_and_is_read_back(name):
    grammar = compiled(spec_of(offered(function("plan", PLAN), choice="required"), name))
    assert takes(grammar, CALLS[name])
    assert not takes(grammar, "Hello.")
    assert not takes(grammar, "")
    for text in WRONG[name]:
        assert not takes(grammar, text), text
    parser = tool_parser(name)({"plan": PLAN}, is_constrained=True)
    answer = collect([*parser.add(parser.prefill), *parser.add(CALLS[name]), *parser.finish()])
    assert answer.is_complete
    jsonschema.validate(json.loads(answer.calls[0].arguments), PLAN)
    assert json.loads(answer.calls[0].arguments) == {"route": {"to": "X"}, "note": "a\nb"}


@pytest.mark.parametrize("name", AUTO)
def test_with_auto_there_are_words_or_calls_but_no_wrong_calls(name):
    grammar = compiled(spec_of(offered(function("plan", PLAN)), name))
    assert takes(grammar, "Hello <b>there</b>, a < b.")
    assert takes(grammar, CALLS[name])
    for text in WRONG[name]:
        assert not takes(grammar, text), text


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
def test_formats_in_tags_mix_words_and_calls(name):
    grammar = compiled(spec_of(offered(function("plan", PLAN)), name))
    assert takes(grammar, f"Let me see.\n{CALLS[name]}\n{CALLS[name]} Done.")


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_a_named_tool_is_called_once(name):
    choice = {"type": "function", "function": {"name": "plan"}}
    grammar = compiled(spec_of(offered(function("plan", PLAN), function("other"), choice=choice), name))
    assert takes(grammar, CALLS[name])
    assert not takes(grammar, CALLS[name] + tool_parser(name).separator + CALLS[name])


@pytest.mark.parametrize("name", ["hermes", "json", "llama3_json", "qwen3_coder"])
@pytest.mark.parametrize("is_parallel", [None, False])
def test_calls_are_parallel_unless_forbidden(name, is_parallel):
    grammar = compiled(spec_of(offered(function("plan", PLAN), choice="required", is_parallel=is_parallel), name))
    two = CALLS[name] + tool_parser(name).separator + CALLS[name]
    assert takes(grammar, two) == (is_parallel is None)


def test_parallel_python_calls_stand_in_one_list():
    grammar = compiled(spec_of(offered(function("plan", PLAN), function("lamp"), choice="required"), "pythonic"))
    assert takes(grammar, '[plan(route={"to": "X"}, note=""), lamp()]')


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_two_hundred_tools_compile(name):
    tools = [function(f"tool_{index}", SCHEMAS["get_weather"]) for index in range(200)]
    compiled(spec_of(offered(*tools, choice="required"), name))


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_tools_without_parameters_are_called_with_nothing(name):
    grammar = compiled(spec_of(offered(function("plan"), choice="required"), name))
    texts = {
        "hermes": '<tool_call>\n{"name": "plan", "arguments": {}}\n</tool_call>',
        "json": '{"name": "plan", "arguments": {}}',
        "llama3_json": '{"name": "plan", "parameters": {}}',
        "harmony": '{"name": "plan", "arguments": {}}',
        "pythonic": "[plan()]",
        "qwen3_coder": "<tool_call>\n<function=plan>\n</function>\n</tool_call>",
    }
    assert takes(grammar, texts[name])
    parser = tool_parser(name)({"plan": {}}, is_constrained=True)
    answer = collect([*parser.add(parser.prefill), *parser.add(texts[name]), *parser.finish()])
    assert [(call.arguments, call.is_complete) for call in answer.calls] == [("{}", True)]


def test_optional_python_arguments_have_their_commas():
    schema = {"type": "object", "properties": {key: {"type": "integer"} for key in "abc"}}
    grammar = compiled(spec_of(offered(function("f", schema), choice="required"), "pythonic"))
    for text in ("[f()]", "[f(a=1)]", "[f(b=1, c=2)]", "[f(a=1, c=2)]", "[f(a=1, b=2, c=3)]"):
        assert takes(grammar, text), text
    assert not takes(grammar, "[f(a=1 b=2)]")
    assert not takes(grammar, "[f(, a=1)]")


@pytest.mark.parametrize("name", ["hermes", "json", "pythonic", "qwen3_coder"])
def test_words_have_the_response_format_beside_calls(name):
    answer = GrammarSpec(kind="json_schema", value='{"type": "object", "properties": {"a": {"type": "integer"}}}')
    grammar = compiled(spec_of(offered(function("plan", PLAN)), name, answer))
    assert takes(grammar, '{"a": 1}')
    assert takes(grammar, CALLS[name])
    assert not takes(grammar, "Hello.")


@pytest.mark.parametrize("name", AUTO)
@pytest.mark.parametrize("choice", [None, "required"])
def test_custom_tools_stand_beside_functions(name, choice):
    grammar_format = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-z]+"}}
    custom = {"type": "custom", "custom": {"name": "sh", "format": grammar_format}}
    request = offered(function("plan", PLAN), custom, choice=choice)
    grammar = compiled(spec_of(request, name))
    text = '<custom_tool_call name="sh">\nls\n</custom_tool_call>'
    assert takes(grammar, text)
    assert takes(grammar, CALLS[name])
    assert not takes(grammar, text.replace("ls", "L S"))
    inner = tool_parser(name)(request.functions, is_constrained=True)
    parser = CustomCallParser(request.custom_names, inner)
    assert collect([*parser.add(text), *parser.finish()]).calls[0].arguments == "ls"


@pytest.mark.parametrize("name", ["pythonic", "qwen3_coder"])
def test_what_a_format_cannot_hold_a_call_to_is_refused_where_certainty_is_demanded(name):
    tool = function("f", {"type": "object", "properties": {"a": {}}, "minProperties": 1})
    with pytest.raises(BadRequestError, match="minProperties"):
        spec_of(offered(tool, choice="required"), name)
    strict = function("f", tool["function"]["parameters"], strict=True)
    with pytest.raises(BadRequestError, match="minProperties"):
        spec_of(offered(strict), name)


def test_harmony_constrains_no_call_with_auto_and_says_so():
    with pytest.raises(BadRequestError, match="tool_choice"):
        spec_of(offered(function("f", PLAN, strict=True)), "harmony")

"""The grammar of a request's tools: what it takes, what it refuses, and that the parsers read what it takes."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench.tools.agent_tools import agent_tools
from constrained.compile.walk import legal_token_ids
from constrained.engines.base import BaseGrammarObject
from constrained.engines.llguidance_backend import LLGuidanceBackend
from constrained.engines.xgrammar_backend import XGrammarBackend
from constrained.environment import GrammarEnvironment
from constrained.errors import TokenRejectedError
from constrained.preparation import PrepareOptions, SchemaError, prepare
from constrained.spec import GrammarSpec
from constrained.vocabulary import Vocabulary
from server.answer.events import collect
from server.errors import BadRequestError
from server.formats.harmony import HarmonyParser
from server.formats.registry import TOOL_PARSERS, tool_parser
from server.tools.constraint import tool_constraint
from server.tools.custom import CustomCallParser
from server.tools.definitions import Tool, ToolRequest, read_tools
from server.tools.forms import MAX_PARALLEL_CALLS

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
    "harmony": "<|channel|>commentary to=functions.plan <|constrain|>json<|message|>"
    '{"route": {"to": "X"}, "note": "a\\nb"}',
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
    "harmony": [
        "<|channel|>commentary to=functions.plan <|constrain|>json<|message|>{}",
        "<|channel|>commentary to=functions.other <|constrain|>json<|message|>{}",
        "<|channel|>commentary to=functions.plan code<|message|>{}",
        '{"name": "plan", "arguments": {}}',
    ],
}
WORDS = dict.fromkeys(TOOL_PARSERS, "") | {"harmony": "<|channel|>final<|message|>"}
"""What an answer in words begins with."""
SPECIAL = {spelling: 256 + index for index, spelling in enumerate(HarmonyParser.shown_tokens)}


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
        request,
        tool_parser(name),
        token_ids=SPECIAL,
        answer=answer,
        answer_field="response_format",
        lenient=False,
        backend=None,
        max_bytes=4_000_000,
    )
    assert constraint.spec is not None
    return constraint.spec


ENVIRONMENT = GrammarEnvironment(
    Vocabulary((*(bytes([i]) for i in range(256)), *map(str.encode, SPECIAL), b""), frozenset(range(256, 264))),
    264,
    (263,),
)
BACKENDS = {"llguidance": LLGuidanceBackend(ENVIRONMENT), "xgrammar": XGrammarBackend(ENVIRONMENT)}
ENGINES = sorted(BACKENDS)


def compiled(spec: GrammarSpec, engine: str = "auto") -> BaseGrammarObject:
    prepared = prepare(spec, PrepareOptions(backend=engine))
    if engine != "auto":
        assert prepared.backend == engine
    return BACKENDS[prepared.backend].dispatch_structural_tag(prepared.text)


def takes(grammar: BaseGrammarObject, text: str) -> bool:
    state = grammar.copy()
    try:
        for piece in re.split(f"({'|'.join(map(re.escape, SPECIAL))})", text):
            for token_id in [SPECIAL[piece]] if piece in SPECIAL else piece.encode():
                state.accept_token(token_id)
    except TokenRejectedError:
        return False
    return state.is_accepting()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_a_required_call_fits_its_schema_and_is_read_back(name, engine):
    grammar = compiled(spec_of(offered(function("plan", PLAN), choice="required"), name), engine)
    assert takes(grammar, CALLS[name])
    assert not takes(grammar, "Hello.")
    assert not takes(grammar, "")
    for text in WRONG[name]:
        assert not takes(grammar, text), text
    parser = tool_parser(name)({"plan": PLAN}, is_constrained=True)
    answer = collect([*parser.add(CALLS[name]), *parser.finish()])
    assert answer.is_complete
    jsonschema.validate(json.loads(answer.calls[0].arguments), PLAN)
    assert json.loads(answer.calls[0].arguments) == {"route": {"to": "X"}, "note": "a\nb"}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_with_auto_there_are_words_or_calls_but_no_wrong_calls(name, engine):
    grammar = compiled(spec_of(offered(function("plan", PLAN)), name), engine)
    assert takes(grammar, WORDS[name] + "Hello <b>there</b>, a < b.")
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
        "harmony": "<|channel|>commentary to=functions.plan<|constrain|>json<|message|>{}",
        "pythonic": "[plan()]",
        "qwen3_coder": "<tool_call>\n<function=plan>\n</function>\n</tool_call>",
    }
    assert takes(grammar, texts[name])
    parser = tool_parser(name)({"plan": {}}, is_constrained=True)
    answer = collect([*parser.add(texts[name]), *parser.finish()])
    assert [(call.arguments, call.is_complete) for call in answer.calls] == [("{}", True)]


def test_optional_python_arguments_have_their_commas():
    schema = {"type": "object", "properties": {key: {"type": "integer"} for key in "abc"}}
    grammar = compiled(spec_of(offered(function("f", schema), choice="required"), "pythonic"))
    for text in ("[f()]", "[f(a=1)]", "[f(b=1, c=2)]", "[f(a=1, c=2)]", "[f(a=1, b=2, c=3)]"):
        assert takes(grammar, text), text
    assert not takes(grammar, "[f(a=1 b=2)]")
    assert not takes(grammar, "[f(, a=1)]")


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_words_have_the_response_format_beside_calls(name):
    answer = GrammarSpec(kind="json_schema", value='{"type": "object", "properties": {"a": {"type": "integer"}}}')
    grammar = compiled(spec_of(offered(function("plan", PLAN)), name, answer))
    assert takes(grammar, WORDS[name] + '{"a": 1}')
    assert takes(grammar, CALLS[name])
    assert not takes(grammar, WORDS[name] + "Hello.")


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
@pytest.mark.parametrize("choice", [None, "required"])
def test_custom_tools_stand_beside_functions(name, choice):
    grammar_format = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-z]+"}}
    custom = {"type": "custom", "custom": {"name": "sh", "format": grammar_format}}
    request = offered(function("plan", PLAN), custom, choice=choice)
    grammar = compiled(spec_of(request, name))
    header = "<|channel|>commentary<|message|>" if name == "harmony" and choice else WORDS[name]
    text = f'{header}<custom_tool_call name="sh">\nls\n</custom_tool_call>'
    assert takes(grammar, text)
    assert takes(grammar, CALLS[name])
    assert not takes(grammar, text.replace("ls", "L S"))
    inner = tool_parser(name)(request.functions, is_constrained=True)
    parser = CustomCallParser(request.custom_names, inner)
    assert collect([*parser.add(text), *parser.finish()]).calls[0].arguments == "ls"


CUSTOM_GRAMMARS = {
    "one lexeme": ('start: WORD ("," WORD)*\nWORD: /[a-z]+/\n', ["ab,c"], ["ab,", "A"]),
    "empty": ("start: WORD*\nWORD: /[a-z]/\n", ["", "ab"], ["A"]),
    "lines": ("start: line+\nline: /[a-z]+/ NEWLINE\nNEWLINE: /\\n/\n", ["ab\nc\n"], ["ab", "\n"]),
    "recursion": (
        'start: sum\nsum: term (("+" | "-") term)*\nterm: NUMBER | "(" sum ")"\nNUMBER: /[0-9]+/\n%ignore / /\n',
        ["1+(2 - 33)", "4"],
        ["1+", "(1", "x"],
    ),
    "recursion over lines": (
        'start: block\nblock: "{" NEWLINE (block | WORD NEWLINE)* "}"\nWORD: /[a-z]+/\nNEWLINE: /\\n/\n',
        ["{\nab\n{\n}}", "{\n}"],
        ["{", "{}", "{\n}\n"],
    ),
}


@pytest.mark.parametrize(("name", "choice"), [("hermes", None), ("hermes", "required"), ("harmony", "required")])
def test_custom_grammars_stand_beside_a_keyword_that_only_llguidance_has(name, choice):
    def custom(kind):
        form = {"type": "grammar", "grammar": {"syntax": "lark", "definition": CUSTOM_GRAMMARS[kind][0]}}
        return {"type": "custom", "custom": {"name": kind.replace(" ", "_"), "format": form}}

    schema = {"type": "object", "properties": {"x": KEYWORDS["uri"][0]}, "required": ["x"]}
    request = offered(function("open", schema), *map(custom, CUSTOM_GRAMMARS), choice=choice)
    grammar = compiled(spec_of(request, name), "llguidance")
    header = "<|channel|>commentary<|message|>" if name == "harmony" else WORDS[name]
    for kind, (_, valid, invalid) in CUSTOM_GRAMMARS.items():
        call = f'{header}<custom_tool_call name="{kind.replace(" ", "_")}">\n%s\n</custom_tool_call>'
        assert [text for text in valid if not takes(grammar, call % text)] == []
        assert [text for text in invalid if takes(grammar, call % text)] == []


KEYWORDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "uri": (
        {"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083}, '"https://a.example/b"', '"no address"'
    ),
    "multipleOf": ({"type": "integer", "multipleOf": 5}, "15", "16"),
    "email": ({"type": "string", "format": "email", "maxLength": 254}, '"a@b.example"', '"a"'),
    "hostname": ({"type": "string", "format": "hostname"}, '"a.example"', '"-"'),
    "letters": ({"type": "string", "pattern": r"^[\p{L}\p{N} ]{1,64}$"}, '"né 1"', '"!"'),
    "any 500": ({"type": "string", "pattern": "^.{0,500}$"}, '"' + "x" * 500 + '"', '"' + "x" * 501 + '"'),
    "maxLength": ({"type": "string", "maxLength": 256}, '"' + "x" * 256 + '"', '"' + "x" * 257 + '"'),
}  # fmt: skip


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_parameter_takes_the_keywords_that_a_response_format_takes(keyword):
    schema, good, bad = KEYWORDS[keyword]
    parameters = {"properties": {"a": schema}, "required": ["a"]}
    for name in ("hermes", "qwen3_coder", "pythonic"):
        spec = spec_of(offered(function("f", parameters), choice="required"), name)
        assert prepare(spec).backend == "llguidance"
        grammar = compiled(spec)
        for value, is_right in ((good, True), (bad, False)):
            text = {
                "hermes": whole_call(name, "f", f'{{"a": {value}}}'),
                "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\n"
                f"{value}\n</parameter>\n</function>\n</tool_call>",
                "pythonic": f"[f(a={value})]",
            }[name]
            assert takes(grammar, text) == is_right, (name, value[:40])


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_the_grammar_of_many_tools_is_no_longer_than_the_tools(name):
    tools = agent_tools()
    assert len(tools) == 128
    lengths = {}
    for count, choice in ((32, "required"), (128, "required"), (128, None)):
        prepared = prepare(spec_of(offered(*tools[:count], choice=choice), name))
        assert prepared.backend == "llguidance"
        lengths[count, choice] = len(prepared.text)
    assert lengths[128, "required"] < len(json.dumps(tools))
    # Calls may come first and again: they are written once. Four times the tools are four times the rules.
    assert lengths[128, "required"] < 1.1 * lengths[128, None]
    assert lengths[128, "required"] < 5 * lengths[32, "required"]


@pytest.mark.parametrize("length", [128, 256, 513, 2083])
def test_a_string_that_would_hold_up_xgrammar_is_refused_before_it_compiles(length):
    parameters = {"properties": {"a": {"type": "object", "properties": {"b": {"type": "string", "maxLength": length}}}}}
    spec = spec_of(offered(function("f"), function("g", parameters), choice="required"), "hermes")
    with pytest.raises(SchemaError, match="maxLength") as caught:
        prepare(spec, PrepareOptions(backend="xgrammar"))
    assert caught.value.pointer == "tools[1].function.parameters/properties/a/properties/b"
    assert prepare(spec).backend == "llguidance"


def whole_call(format_name: str, tool: str, arguments: str) -> str:
    """A call whose arguments are one JSON object."""
    return {
        "hermes": f'<tool_call>\n{{"name": "{tool}", "arguments": {arguments}}}\n</tool_call>',
        "json": f'{{"name": "{tool}", "arguments": {arguments}}}',
        "llama3_json": f'{{"name": "{tool}", "parameters": {arguments}}}',
        "pythonic": f"[{tool}(**{arguments})]",
        "qwen3_coder": f"<tool_call>\n<function={tool}>\n{arguments}\n</function>\n</tool_call>",
        "harmony": f" to=functions.{tool}<|channel|>commentary <|constrain|>json<|message|>{arguments}",
    }[format_name]


AB = {"a": {"type": "integer"}, "b": {"type": "string"}}
TOGETHER: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    (
        "anyOf",
        {"properties": AB, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a": 1}', '{"b": "x"}'],
        ["{}"],
    ),
    (
        "oneOf",
        {
            "oneOf": [
                {"properties": {"a": AB["a"]}, "required": ["a"]},
                {"properties": {"b": AB["b"]}, "required": ["b"]},
            ]
        },
        ['{"a": 1}', '{"b": "x"}'],
        ["{}", '{"a": "x"}', '{"c": 1}'],
    ),
    ("$ref", {"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": AB}}}, ['{"a": 1}'], ['{"a": "x"}']),
    ("patternProperties", {"patternProperties": {"^x[0-9]$": {"type": "integer"}}}, ['{"x1": 1}'], ['{"x1": "a"}']),
    (
        "additionalProperties",
        {"properties": {"a": AB["a"]}, "minProperties": 2, "additionalProperties": {"type": "boolean"}},
        ['{"a": 1, "c": true}'],
        ['{"a": 1}', '{"a": 1, "c": 2}'],
    ),
    (
        "if",
        {"properties": AB, "required": ["b"], "if": {"properties": {"b": {"const": "x"}}}, "then": {"required": ["a"]}},
        ['{"a": 1, "b": "x"}', '{"b": "y"}'],
        ['{"b": "x"}'],
    ),
    ("minProperties", {"properties": AB, "minProperties": 1}, ['{"a": 1}', '{"b": ""}'], ["{}"]),
    ("dependentRequired", {"properties": AB, "dependentRequired": {"a": ["b"]}}, ['{"b": ""}'], ['{"a": 1}']),
    ("sibling", {"properties": {**AB, "c": {"$ref": "#/properties/a"}}}, ['{"c": 1}'], ['{"c": ""}']),
    ("self", {"properties": {"n": {"$ref": "#"}}}, ['{"n": {"n": {}}}'], ['{"n": 1}']),
    ("names", {"properties": {"user id>": {"type": "integer"}}, "required": ["user id>"]}, ['{"user id>": 1}'], ["{}"]),
]


@pytest.mark.parametrize(
    ("name", "choice"), [("pythonic", None), ("pythonic", "required"), ("qwen3_coder", None), ("hermes", "required")]
)
@pytest.mark.parametrize(("keyword", "schema", "good", "bad"), TOGETHER, ids=[case[0] for case in TOGETHER])
def test_what_a_schema_says_of_its_parameters_together_holds(name, choice, keyword, schema, good, bad):
    grammar = compiled(spec_of(offered(function("f", schema), choice=choice), name))
    parser_class = tool_parser(name)
    for arguments in good:
        text = whole_call(name, "f", arguments)
        assert takes(grammar, text), text
        for is_constrained in (True, False):
            parser = parser_class({"f": schema}, is_constrained=is_constrained)
            answer = collect([*parser.add(text), *parser.finish()])
            assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [("f", json.loads(arguments))]
            assert answer.is_complete
    for arguments in bad:
        assert not takes(grammar, whole_call(name, "f", arguments)), arguments


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
@pytest.mark.parametrize("tool", ["1", "-x", "a-b_C", "9" * 64])
def test_every_name_that_is_legal_can_be_called(name, tool):
    schema = {"properties": AB, "minProperties": 1}
    grammar = compiled(spec_of(offered(function(tool, schema), choice="required"), name))
    text = whole_call(name, tool, '{"a": 1}')
    assert takes(grammar, text)
    for is_constrained in (True, False):
        parser = tool_parser(name)({tool: schema}, is_constrained=is_constrained)
        answer = collect([*parser.add(text), *parser.finish()])
        assert [(call.name, call.arguments) for call in answer.calls] == [(tool, '{"a": 1}')]


@pytest.mark.parametrize("name", sorted(set(TOOL_PARSERS) - {"harmony"}))
@pytest.mark.parametrize("choice", [None, "required"])
def test_the_number_of_parallel_calls_is_bounded(name, choice):
    grammar = compiled(spec_of(offered(function("f"), choice=choice), name))
    if name == "pythonic":
        rows = ["[" + ", ".join(["f()"] * number) + "]" for number in (MAX_PARALLEL_CALLS, MAX_PARALLEL_CALLS + 1)]
    else:
        call = whole_call(name, "f", "{}")
        if name == "qwen3_coder":
            call = "<tool_call>\n<function=f>\n</function>\n</tool_call>"
        separator = tool_parser(name).separator
        rows = [separator.join([call] * number) for number in (MAX_PARALLEL_CALLS, MAX_PARALLEL_CALLS + 1)]
    assert takes(grammar, rows[0])
    assert not takes(grammar, rows[1])


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"properties": {"a": {"type": "strnig"}}}, "/properties/a/type"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": 3}}}, "/$defs/b/type"),
        ({"properties": {"a": {"$ref": "#/$defs/nowhere"}}}, "/properties/a/$ref"),
        ({"properties": {"a": {}}, "anyOf": 3}, "/anyOf"),
        ({"properties": [], "required": "a"}, ""),
    ],
)
def test_a_refused_schema_is_named_with_its_place_in_the_request(name, schema, pointer):
    request = offered(function("f"), function("g", schema), choice="required")
    with pytest.raises(SchemaError) as caught:
        prepare(spec_of(request, name))
    assert caught.value.pointer.startswith(f"tools[1].function.parameters{pointer}")


@pytest.mark.parametrize("syntax", ["regex", "lark"])
def test_a_refused_custom_grammar_is_named_with_its_place_in_the_request(syntax):
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": "(" if syntax == "regex" else "start: ("}}
    request = offered(function("f"), {"type": "custom", "custom": {"name": "sh", "format": form}})
    with pytest.raises(SchemaError) as caught:
        prepare(spec_of(request, "hermes"))
    assert caught.value.pointer == "tools[1].custom.format.grammar.definition"


HARMONY_CALL = CALLS["harmony"]
THOUGHT = "<|channel|>analysis<|message|>Hm, a < b.<|end|><|start|>assistant"
REMARK = "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant"


def test_harmony_holds_calls_to_their_form_from_their_header_on():
    auto = compiled(spec_of(offered(function("plan", PLAN)), "harmony"))
    for text in (
        HARMONY_CALL,
        THOUGHT + HARMONY_CALL,
        THOUGHT + REMARK + THOUGHT + HARMONY_CALL,
        HARMONY_CALL.replace("plan <|constrain|>", "plan<|constrain|>"),
        f"{THOUGHT}<|channel|>final<|message|>No call, to=functions.plan is text here.",
    ):
        assert takes(auto, text), text
    for text in (
        HARMONY_CALL + "<|end|>",
        THOUGHT.replace("<|end|>", "") + HARMONY_CALL,
        "<|channel|>analysis<|message|>No end",
        f"{THOUGHT}<|channel|>secret<|message|>x",
        "<|channel|>final<|message|>x<|end|>",
    ):
        assert not takes(auto, text), text
    required = compiled(spec_of(offered(function("plan", PLAN), choice="required"), "harmony"))
    assert takes(required, THOUGHT + HARMONY_CALL)
    for text in ("<|channel|>final<|message|>x", REMARK + HARMONY_CALL, THOUGHT):
        assert not takes(required, text), text


def test_without_its_special_tokens_harmony_is_refused_where_a_call_is_demanded():
    options = {"token_ids": {}, "answer": None, "answer_field": "", "lenient": False, "backend": None, "max_bytes": 999}
    constraint = tool_constraint(offered(function("f")), HarmonyParser, **options)
    assert (constraint.spec, constraint.has_free_text) == (None, True)
    with pytest.raises(BadRequestError, match="special token"):
        tool_constraint(offered(function("f"), choice="required"), HarmonyParser, **options)


TOWARDS_THE_END = {*b'"}])', SPECIAL["<|end|>"]}


def written_under(grammar: BaseGrammarObject, choose: random.Random) -> str | None:
    """A random text that the grammar allows, drawn towards its end; ``None`` where it became too long."""
    state = grammar.copy()
    token_ids: list[int] = []
    for _ in range(1500):
        if state.is_terminated() or (state.is_accepting() and choose.random() < 0.5):
            break
        legal = [i for i in legal_token_ids(state).tolist() if i < 128 or i in SPECIAL.values()]
        closing = [i for i in legal if i in TOWARDS_THE_END and token_ids[-1:] != [i]]
        following = [choose.choice(closing if closing and choose.random() < 0.5 else legal)]
        if choose.random() < 0.1 and takes_next(state, b"\n</parameter>\n"):
            following = list(b"\n</parameter>\n")
        for token_id in following:
            state.accept_token(token_id)
        token_ids += following
    if not state.is_accepting():
        return None
    return b"".join(ENVIRONMENT.vocabulary.token_bytes[i] for i in token_ids).decode()


def takes_next(state: BaseGrammarObject, text: bytes) -> bool:
    accepted = 0
    try:
        for byte in text:
            state.accept_token(byte)
            accepted += 1
    except TokenRejectedError:
        return False
    finally:
        state.rollback(accepted)
    return True


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_whatever_a_grammar_writes_is_read_as_calls_that_fit_their_schemas(name):
    schemas = {f"t{i}": schema for i, (keyword, schema, _, _) in enumerate(TOGETHER) if keyword != "self"}
    schemas |= {"plan": PLAN, "lamp": {"type": "object", "properties": {}, "additionalProperties": False}}
    grammar = compiled(spec_of(offered(*(function(*tool) for tool in schemas.items()), choice="required"), name))
    choose = random.Random(name)
    texts = [text for _ in range(12) if (text := written_under(grammar, choose)) is not None]
    assert len(texts) > 3
    for text in texts:
        answers = []
        for pieces in ([text], list(text)):
            parser = tool_parser(name)(schemas, is_constrained=True)
            events = [event for piece in pieces for event in parser.add(piece)]
            answers.append(collect([*events, *parser.finish()]))
        assert answers[0] == answers[1]
        assert answers[0].content.strip() == ""
        assert answers[0].is_complete, text
        for call in answers[0].calls:
            jsonschema.validate(json.loads(call.arguments), schemas[call.name])

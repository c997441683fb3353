"""No request body gives a 500: bodies that use every field, with one value after the other replaced by a bad one."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
SCHEMA = {
    "$defs": {"d": {"type": "string"}},
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/d"}, "y": {"type": "integer", "enum": [1]}},
    "required": ["x"],
}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
CUSTOM = {
    "type": "custom",
    "custom": {"name": "c", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a"}}},
}
CHAT = {
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "s"}]},
        {"role": "user", "content": "u", "name": "n"},
        {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "assistant", "function_call": {"name": "f", "arguments": '{"x": 1}'}},
        {"role": "function", "name": "f", "content": "3"},
    ],
    "max_tokens": 1,
}
TOOLS = {"messages": [{"role": "user", "content": "u"}], "max_tokens": 1, "tools": [TOOL, CUSTOM]}
ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "auto", "tools": [{"type": "custom", "custom": {"name": "c"}}]},
}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
USER = [{"role": "user", "content": "u"}]
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/apply_template", CHAT),
    ("/v1/chat/completions", {**TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ("/v1/chat/completions", {**TOOLS, "tool_choice": ALLOWED}),
    (
        "/v1/chat/completions",
        {"messages": USER, "max_tokens": 1, "functions": [TOOL["function"]], "function_call": {"name": "f"}},
    ),
    (
        "/v1/chat/completions",
        {
            "messages": USER,
            "max_tokens": 1,
            "response_format": FORM,
            "stream": True,
            "stream_options": {"include_usage": True},
            "logit_bias": {"1": 1.0},
            "stop": ["x"],
            "prediction": {"type": "content", "content": [{"type": "text", "text": "a"}]},
            "chat_template_kwargs": {"enable_thinking": True},
        },
    ),
    ("/v1/chat/completions", {"messages": USER, "max_tokens": 1, "structured_outputs": {"json": json.dumps(SCHEMA)}}),
    (
        "/v1/chat/completions",
        {
            "messages": USER,
            "max_tokens": 1,
            "response_format": {
                "type": "structural_tag",
                "triggers": ["<"],
                "structures": [{"begin": "<", "schema": SCHEMA, "end": ">"}],
            },
        },
    ),
    (
        "/v1/completions",
        {"prompt": ["a"], "max_tokens": 1, "bad_words": ["b"], "allowed_token_ids": [5], "choice": ["a"]},
    ),
    ("/v1/completions", {"prompt": [[1, 2]], "max_tokens": 1, "regex": "a", "stop_token_ids": [3]}),
    ("/tokenize", {"messages": USER, "chat_template_kwargs": {"a": 1}}),
    ("/detokenize", {"tokens": [1, 2]}),
    *(
        ("/parse_tool_calls", {"text": text, "tools": [TOOL, CUSTOM], "tool_call_parser": parser})
        for parser, text in [
            ("hermes", '<tool_call>{"name": "f", "arguments": {"x": %s}}</tool_call>'),
            ("hermes", '<tool_call>{"arguments": {"x": %s}, "name": "f"}</tool_call>'),
            ("qwen3_coder", "<tool_call><function=f><parameter=x>%s</parameter></function></tool_call>"),
            ("json", '[{"name": "f", "arguments": {"x": %s}}]'),
            ("llama3_json", '{"name": "f", "parameters": {"x": %s}}'),
            ("pythonic", "[f(x=%s)]"),
            ("harmony", '<|channel|>commentary to=functions.f<|message|>{"x": %s}<|call|>'),
        ]
    ),
    ("/separate_reasoning", {"text": "<think>a</think>b", "reasoning_parser": "deepseek_r1", "is_thinking": True}),
    ("/abort_request", {"request_id": "x"}),
]
IN_CALLS = [
    "1e999",
    '"\\ud800"',
    "'\\ud800'",
    "NaN",
    "[" * 400 + "]" * 400,
    "9" * 5000,
    "-" * 3000 + "1",
    '{"a": 1, "a": 2}',
    "b'x'",
    "{1: 2}",
]
BAD: list[Any] = [
    None, True, 0, -1, 2**63, 1e300, "", "é\x00", "x" * 300, [], [[]], {}, {"a": [{}]}, [None], "#/$defs/nowhere",
    '{"v": 1e999}', '{"v": "\\ud800"}', '{"\\udc00": 1}', "{\"a\":" * 300 + "1" + "}" * 300, "[" * 100_000, "9" * 5000,
    "null", "NaN",
]  # fmt: skip


TEXTS = {body["tool_call_parser"]: body["text"] for path, body in BODIES if path == "/parse_tool_calls"}
UNSPEAKABLE_CALLS = [
    ("/parse_tool_calls", {"text": text % value, "tools": [TOOL], "tool_call_parser": parser})
    for parser, text in TEXTS.items()
    for value in IN_CALLS
]
BROKEN_PARAMETERS = [
    ("/parse_tool_calls", {"text": TEXTS["qwen3_coder"] % 5, "tools": [tool], "tool_call_parser": "qwen3_coder"})
    for broken in [{"properties": 5}, {"properties": "x"}, {"required": [[1]]}, {"required": 5}]
    for tool in [{"type": "function", "function": {"name": "f", "parameters": {**SCHEMA, **broken}}}]
] + [
    (
        "/parse_tool_calls",
        {
            "text": TEXTS["qwen3_coder"] % 5,
            "tools": [{"function": {"name": "f", "parameters": {"properties": {"x": {"type": "string", "enum": 5}}}}}],
            "tool_call_parser": "qwen3_coder",
        },
    )
]


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside."""
    for step, child in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield (*path, step)
        yield from places(child, (*path, step))


def with_value(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(body)
    node = changed
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    return changed


def cases() -> list[tuple[str, Any]]:
    found = []
    for path, body in BODIES:
        if path == "/parse_tool_calls":
            body = {**body, "text": body["text"] % '"5"'}
        found += [(path, with_value(body, place, value)) for place in places(body) for value in BAD]
    return found


STEP = 97
"""Every how many cases one is sent; all of them take minutes. It shares no factor with the number of bad values."""


@pytest.mark.parametrize("knows_tools", [True, False])
def test_no_body_gives_a_500(make_server, assets, knows_tools):
    source = "{{ tools | tojson }}{% for m in messages %}{{ m | tojson }}{% endfor %}"
    server = make_server(with_assets=replace(assets, chat_template=source)) if knows_tools else make_server()
    failed = [
        (path, body)
        for path, body in [*cases()[::STEP], *UNSPEAKABLE_CALLS, *BROKEN_PARAMETERS]
        if server.post(path, body).status_code >= 500
    ]
    assert failed == []

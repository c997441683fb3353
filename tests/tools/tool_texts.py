"""Answers that call tools, as models write them, and what each says."""

from __future__ import annotations

import json
from typing import Any

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "units": {"type": "string", "enum": ["metric", "imperial"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city"],
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": WEATHER,
    "save-file": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"],
    },
    "lamp_on": {"type": "object", "properties": {}, "additionalProperties": False},
}

Calls = list[tuple[str, Any]]

HERMES: list[tuple[str, str, Calls]] = [
    ("Hello there.", "Hello there.", []),
    (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>',
        "",
        [("get_weather", {"city": "Oslo", "days": 3})],
    ),
    (
        'I will look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "a } \\" ]"}}\n</tool_call>\n'
        '<tool_call>{"name": "lamp_on", "arguments": {}}</tool_call>',
        "I will look.",
        [("get_weather", {"city": 'a } " ]'}), ("lamp_on", {})],
    ),
    (
        '<tool_call>\n{"name": "save-file", "arguments": {"path": "x", "content": "</tool_call> \\\\"}}\n</tool_call>',
        "",
        [("save-file", {"path": "x", "content": "</tool_call> \\"})],
    ),
    ("a < b and <tool_cal", "a < b and <tool_cal", []),
]
QWEN3_CODER: list[tuple[str, str, Calls]] = [
    ("1 < 2.", "1 < 2.", []),
    (
        '<tool_call>\n<function=get_weather>\n<parameter=city>\nSan Juan, "PR"\n</parameter>\n<parameter=days>\n2\n'
        '</parameter>\n<parameter=tags>\n["a", "b"]\n</parameter>\n</function>\n</tool_call>',
        "",
        [("get_weather", {"city": 'San Juan, "PR"', "days": 2, "tags": ["a", "b"]})],
    ),
    (
        "<tool_call>\n<function=get_weather>\n<parameter=tags>\n"
        '["</parameter>\\\\", "\\"</parameter>"]\n</parameter>\n</function>\n</tool_call>',
        "",
        [("get_weather", {"tags": ["</parameter>\\", '"</parameter>']})],
    ),
    (
        "On it.\n<tool_call>\n<function=save-file>\n<parameter=path>\n/a b\n</parameter>\n<parameter=content>\n"
        "line 1\n\n"
        "  <b>line</b> \\ 2\n\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=lamp_on>\n</function>\n"
        "</tool_call>",
        "On it.",
        [("save-file", {"path": "/a b", "content": "line 1\n\n  <b>line</b> \\ 2\n"}), ("lamp_on", {})],
    ),
    (
        '<tool_call>\n<function=get_weather>\n{"city": "<b> \\"}", "days": 2}\n</function>\n</tool_call>',
        "",
        [("get_weather", {"city": '<b> "}', "days": 2})],
    ),
]
LLAMA3: list[tuple[str, str, Calls]] = [
    ("It is {warm}.", "It is {warm}.", []),
    ('{"name": "get_weather", "parameters": {"city": "Oslo"}}', "", [("get_weather", {"city": "Oslo"})]),
    (
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}; {"name": "lamp_on", "parameters": {}}',
        "",
        [("get_weather", {"city": "Oslo"}), ("lamp_on", {})],
    ),
]
JSON: list[tuple[str, str, Calls]] = [
    ("No.", "No.", []),
    ('\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n', "", [("get_weather", {"city": "Oslo"})]),
    (
        '{"name": "lamp_on", "arguments": {}}\n{"name": "lamp_on", "arguments": {}}',
        "",
        [("lamp_on", {}), ("lamp_on", {})],
    ),
]
PYTHONIC: list[tuple[str, str, Calls]] = [
    ("[see above] no", "[see above] no", []),
    (
        '[get_weather(city="San (F) ]", days=3, tags=["a", "b"]), lamp_on()]',
        "",
        [("get_weather", {"city": "San (F) ]", "days": 3, "tags": ["a", "b"]}), ("lamp_on", {})],
    ),
    ('[get_weather(city="Oslo", days=null)]', "", [("get_weather", {"city": "Oslo", "days": None})]),
    (
        '[get_weather(**{"city": "a) } \\" ]"}), lamp_on(**{})]',
        "",
        [("get_weather", {"city": 'a) } " ]'}), ("lamp_on", {})],
    ),
]
HARMONY: list[tuple[str, str, Calls]] = [
    ("<|channel|>final<|message|>Two plus two is 4.<|return|>", "Two plus two is 4.", []),
    (
        "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city":"Oslo"}<|call|>',
        "",
        [("get_weather", {"city": "Oslo"})],
    ),
    (
        "<|channel|>commentary<|message|>I will switch it on.<|end|><|start|>assistant to=functions.lamp_on"
        "<|channel|>commentary json<|message|>{}<|call|>",
        "I will switch it on.",
        [("lamp_on", {})],
    ),
]
RECORDED = {
    "hermes": HERMES,
    "qwen3_coder": QWEN3_CODER,
    "llama3_json": LLAMA3,
    "json": JSON,
    "pythonic": PYTHONIC,
    "harmony": HARMONY,
}
RECORDED_CASES = [(name, *case) for name, cases in RECORDED.items() for case in cases]

LOOSE = [
    (
        "pythonic",
        "[get_weather(city='San (F) ]', days=None, tags=['a', \"b\"]), lamp_on()]",
        [("get_weather", {"city": "San (F) ]", "days": None, "tags": ["a", "b"]}), ("lamp_on", {})],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nX\n</parameter>\n<parameter=days>\nthree\n</parameter>\n"
        "<parameter=tags>\nNone\n</parameter>\n</function>\n</tool_call>",
        [("get_weather", {"city": "X", "days": "three", "tags": None})],
    ),
    ("json", '[{"name": "lamp_on", "arguments": {}}]', [("lamp_on", {})]),
    ("hermes", '<tool_call>{"arguments": {}, "name": "lamp_on"}</tool_call>', [("lamp_on", {})]),
    (
        "harmony",
        "<|channel|>commentary to=functions.lamp_on<|message|>{}<|call|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather code<|message|>{"city": "Oslo"}<|call|>',
        [("lamp_on", {}), ("get_weather", {"city": "Oslo"})],
    ),
]
"""What models write when no grammar holds them: values that are no JSON, keys in another order, several messages."""

MALFORMED = {
    "hermes": [
        '<tool_call>{"name": "get_weather", "arguments": {"city": }}</tool_call> sorry',
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Os',
        "<tool_call>get_weather</tool_call>",
        '<tool_call>{"name": "get_weather", "arguments": {"x": NaN}}</tool_call>',
        "<tool_call><tool_call><tool_call>",
    ],
    "qwen3_coder": [
        "<tool_call>\n<function=unknown>\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOs",
        "<tool_call>hm</tool_call>",
        '<tool_call>\n<function=get_weather>\n{"city": Oslo}\n</function>\n</tool_call>',
    ],
    "llama3_json": ['{"name": "unknown", "parameters": {}}', '{"a": 1} and more', '{"name": "get_weather", "para'],
    "json": ['[{"name": "lamp_on", "arguments": {}}, 3]', '{"name": 5}', "{{{{", "[1, 2]"],
    "pythonic": [
        "[get_weather(Oslo)]",
        "[get_weather(city=",
        "[unknown(a=1)]",
        "[get_weather(city=open('x'))]",
        "[lamp_on(**{'a': 1})]",
    ],
    "harmony": ["<|channel|>commentary to=functions.get_weather<|message|>{oops<|call|>"],
}
MALFORMED_CASES = [(name, text) for name, texts in MALFORMED.items() for text in texts]


def calls_of(answer: Any) -> Calls:
    return [(call.name, json.loads(call.arguments)) for call in answer.calls]

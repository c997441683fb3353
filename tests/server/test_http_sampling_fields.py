"""Every sampling field of both completions endpoints, walked: each bad value is a 400 that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.chat.protocol import ChatCompletionRequest
from server.completions.protocol import CompletionRequest
from server.request.fields import SamplingFields

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    TEXT: {"prompt": "hi", "max_tokens": 4},
}
V = 384
"""The test tokenizer's ids, at most."""


def list_of(item: str, count: int) -> str:
    return f"[{','.join([item] * count)}]"


# Every JSON type there is; a field refuses those that are not its own.
OF_TYPE: dict[str, list[str]] = {
    "number": ["1.5"],
    "integer": ["1"],
    "boolean": ["true", "false"],
    "string": ['"1"'],
    "list": ["[[]]", "[1.5]"],
    "object": ['{"x": "y"}'],
}
NOT_FINITE = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"]

# Field: the JSON types it takes, and values out of its range or in contradiction with the rest of the body.
COMMON: dict[str, tuple[set[str], list[str]]] = {
    "n": ({"integer"}, ["0", "-1", "129", "10000", str(10**30)]),
    "max_tokens": ({"integer"}, ["-1", "0", "1000000", str(10**30)]),
    "min_tokens": ({"integer"}, ["-1", "5", str(2**63), str(10**30)]),
    "min_new_tokens": ({"integer"}, ["-1", "5", str(10**30)]),
    "temperature": ({"integer", "number"}, ["-0.01", "2.01", str(10**400)]),
    "top_p": ({"integer", "number"}, ["-1e-9", "-0.5", "1.0001"]),
    "top_k": ({"integer"}, ["-2", str(2**31), str(10**30)]),
    "min_p": ({"integer", "number"}, ["-0.01", "1.01"]),
    "seed": ({"integer"}, [str(2**63), str(-(2**63) - 1), str(10**30)]),
    "repetition_penalty": ({"integer", "number"}, ["0", "-1"]),
    "penalize_prompt": ({"boolean"}, []),
    "frequency_penalty": ({"integer", "number"}, ["-2.01", "2.01"]),
    "presence_penalty": ({"integer", "number"}, ["-2.01", "2.01"]),
    "logit_bias": (
        set(),
        [
            '{"1": 100.5}',
            '{"1": -101}',
            '{"1": true}',
            '{"1": NaN}',
            '{"1": "2"}',
            '{"1": null}',
            '{"-1": 1}',
            '{"1.0": 1}',
            '{"01": 1}',
            '{"\\u0661": 1}',
            '{"": 1}',
            json.dumps({V: 1}),
            json.dumps({"9" * 5000: 1}),
            json.dumps(dict.fromkeys(range(1025), 1)),
            json.dumps(dict.fromkeys(range(9_000), 1)),
        ],
    ),
    "allowed_token_ids": (set(), ["[]", "[-1]", f"[{V}]", "[true]", '["1"]', "[NaN]", "[1, [2]]", f"[{10**30}]"]),
    "bad_words": (set(), ['[""]', "[1]", list_of('"x"', 257), '["' + "x" * 5000 + '"]']),
    "stop": ({"string"}, ['""', '["a", ""]', "[1]", "[null]", list_of('"x"', 17), '"' + "x" * 5000 + '"']),
    "stop_token_ids": (set(), ["[-1]", f"[{V}]", "[true]", '["1"]', list_of("1", 257)]),
    "include_stop_str_in_output": ({"boolean"}, []),
    "ignore_eos": ({"boolean"}, []),
    "skip_special_tokens": ({"boolean"}, []),
    "return_token_ids": ({"boolean"}, []),
    "speculative": ({"boolean"}, []),
    "priority": ({"integer"}, [str(2**31), str(-(2**31) - 1)]),
}
OWN: dict[str, dict[str, tuple[set[str], list[str]]]] = {
    CHAT: {
        "max_completion_tokens": ({"integer"}, ["0", "-1", "1000000"]),
        "logprobs": ({"boolean"}, []),
        "top_logprobs": ({"integer"}, ["-1", "21", "3"]),  # 3 without logprobs
    },
    TEXT: {
        "echo": ({"boolean"}, []),
        "best_of": ({"integer"}, ["0", "-1", "129"]),
        "logprobs": ({"integer"}, ["-1", "21"]),
    },
}
CONSTRAINTS = {"response_format", "structured_outputs", "json_schema", "regex", "ebnf", "choice"}
NOT_SAMPLING = {"model", "stream", "stream_options", "grammar_backend", "lenient", *CONSTRAINTS}


def bad_values(types: set[str], out_of_range: list[str]) -> list[str]:
    takes = types | ({"integer"} if "number" in types else set())
    wrong_type = [text for kind, texts in OF_TYPE.items() if kind not in takes for text in texts]
    return [*wrong_type, *NOT_FINITE, *out_of_range]


CASES = [
    (path, name, text)
    for path in (CHAT, TEXT)
    for name, (types, out_of_range) in {**COMMON, **OWN[path]}.items()
    for text in bad_values(types, out_of_range)
]


@pytest.mark.parametrize(("path", "name", "text"), CASES, ids=[f"{p[4:8]}-{n}-{t[:20]}" for p, n, t in CASES])
def test_a_bad_value_is_a_400_that_names_its_field(shared_server: Any, path: str, name: str, text: str) -> None:
    fields = {key: value for key, value in BASE[path].items() if not (key == "max_tokens" and name.startswith("max_"))}
    body = "".join(f'"{key}": {json.dumps(value)}, ' for key, value in fields.items())
    answer = shared_server.post(path, content=f'{{{body}"{name}": {text}}}'.encode())
    assert answer.status_code == 400, answer.text[:300]
    error = answer.json()["error"]
    assert str(error["param"]).split("[")[0].split(".")[0] == name
    assert name in error["message"]
    assert len(error["message"]) < 1000


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"min_tokens": 5}, "min_tokens"),
        ({"min_new_tokens": 5}, "min_new_tokens"),
        ({"min_tokens": 1, "min_new_tokens": 1}, "min_new_tokens"),
        ({"allowed_token_ids": [70], "bad_words": ["c"]}, "bad_words"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_a_contradiction_is_a_400_that_names_a_field_of_it(
    shared_server: Any, path: str, fields: dict[str, Any], param: str
) -> None:
    tokens = shared_server.post("/tokenize", {"prompt": "c"}).json()["tokens"]
    if "bad_words" in fields:
        fields = {**fields, "allowed_token_ids": tokens}
    answer = shared_server.post(path, {**BASE[path], **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(("path", "model"), [(CHAT, ChatCompletionRequest), (TEXT, CompletionRequest)])
def test_no_sampling_field_is_left_out(path: str, model: type[SamplingFields]) -> None:
    common = set(SamplingFields.model_fields) - NOT_SAMPLING
    assert common == set(COMMON)
    assert set(OWN[path]) <= set(model.model_fields)


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 2},
        {"temperature": 1e-320},
        {"top_p": 1},
        {"top_p": 1e-320},
        {"top_k": -1},
        {"top_k": 0},
        {"top_k": 2**31 - 1},
        {"min_p": 0},
        {"min_p": 1},
        {"seed": 2**63 - 1},
        {"seed": -(2**63)},
        {"n": 128, "max_tokens": 1},
        {"repetition_penalty": 1e-300},
        {"repetition_penalty": 1e300},
        {"frequency_penalty": -2, "presence_penalty": 2},
        {"logit_bias": {"0": -100, "5": 100}},
        {"logit_bias": {}},
        {"stop": ["a"] * 16},
        {"stop": []},
        {"min_tokens": 4},
        {"min_new_tokens": 4},
        {"min_tokens": 4, "ignore_eos": True},
        {"stop_token_ids": [1] * 256},
        {"allowed_token_ids": [0]},
        {"bad_words": ["x", " y"]},
    ],
)
def test_the_ends_of_every_range_are_served(shared_server: Any, path: str, fields: dict[str, Any]) -> None:
    answer = shared_server.post(path, {**BASE[path], **fields})
    assert answer.status_code == 200, answer.text

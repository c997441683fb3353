"""Whatever comes in: an OpenAI error that names the field, in under a second, and the next good request works."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
GOOD: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 2}


def assert_refused(send: Callable[[], httpx.Response], status: int, param: str | None) -> dict[str, Any]:
    for _ in range(3):  # a machine busy with other things may delay one try
        started = time.monotonic()
        answer = send()
        seconds = time.monotonic() - started
        if seconds < 1.0:
            break
    assert seconds < 1.0
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert error["message"]
    return error


def assert_unharmed(server: Any) -> None:
    assert server.post(CHAT, GOOD).status_code == 200


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [5]}, "messages[0]"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": 3, "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "user", "content": "x", "tool_call_id": "1"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].name"),
    ({"messages": [{"role": "assistant", "content": "x", "audio": {"id": "1"}}]}, "messages[0].audio"),
    (
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{nope"}}]}
            ]
        },
        "messages[0].tool_calls[0].function.arguments",
    ),
    ({"model": 5}, "model"),
    ({"stream": "yes"}, "stream"),
    ({"n": 0}, "n"),
    ({"n": 10_000}, "n"),
    ({"n": 1.5}, "n"),
    ({"n": True}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"max_completion_tokens": 0, "max_tokens": None}, "max_completion_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": 10**400}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 10**20}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"frequency_penalty": 2.5}, "frequency_penalty"),
    ({"presence_penalty": -3}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"min_tokens": 3}, "min_tokens"),
    ({"min_tokens": 1, "min_new_tokens": 1}, "min_new_tokens"),
    ({"logit_bias": {"99999": 1}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 1, "01": -1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(9_000)}}, "logit_bias"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [99999]}, "allowed_token_ids[0]"),
    ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
    ({"bad_words": [""]}, "bad_words[0]"),
    ({"bad_words": ["x"] * 1000}, "bad_words"),
    ({"stop": ["x"] * 1000}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": "x" * 100_000}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids[0]"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "schema": {}}}, "response_format.schema"),
    ({"response_format": {"type": "json_object", "schema": "s"}}, "response_format.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format.json_schema.schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": None}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": "s"}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": [1]}}},
        "response_format.json_schema.schema",
    ),
    ({"response_format": {"type": "structural_tag"}}, "response_format"),
    ({"regex": "a", "ebnf": "root ::= 'a'"}, "ebnf"),
    ({"regex": "a", "response_format": {"type": "json_object"}}, "regex"),
    ({"regex": ""}, "regex"),
    ({"regex": 5}, "regex"),
    ({"json_schema": 5}, "json_schema"),
    ({"choice": []}, "choice"),
    ({"choice": ["a", ""]}, "choice[1]"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
    ({"tools": [{"type": "function", "function": {"name": "f g"}}]}, "tools[0].function.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"reasoning_effort": "lots"}, "reasoning_effort"),
    ({"modalities": ["audio"]}, "modalities[0]"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"temprature": 1}, "temprature"),
    ({"guided_json": {}}, "guided_json"),
    ({"priority": 2**40}, "priority"),
]


# Streamed too, where streaming is not itself what the field is about.
BAD_CASES = [
    (fields, param, stream)
    for fields, param in BAD_FIELDS
    for stream in (False, True)
    if not (stream and ("stream" in fields or "stream_options" in fields))
] + [({"stream_options": {"x": True}}, "stream_options.x", True)]


@pytest.mark.parametrize(("fields", "param", "stream"), BAD_CASES, ids=[case[1] for case in BAD_CASES])
def test_a_bad_field_is_named(shared_server, fields, param, stream):
    content = json.dumps({**GOOD, "stream": stream, **fields}).encode()
    assert_refused(lambda: shared_server.post(CHAT, content=content), 400, param)


def test_the_server_is_unharmed_by_all_of_that(shared_server):
    assert_unharmed(shared_server)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [""]}, "prompt[0]"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[0]"),
        ({"prompt": [10**6]}, "prompt[0]"),
        ({"prompt": [[1], [10**6]]}, "prompt[1][0]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [10**30]}, "prompt[0]"),
        ({"prompt": ["a"] * 1000}, "prompt"),
        ({"prompt": ["a"] * 100, "n": 100}, "n"),
        ({"prompt": [-1] * 1_000_000}, "prompt[0]"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 10_000}, "best_of"),
        ({"n": 10_000}, "n"),
        ({"n": 129}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": MESSAGES}, "messages"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}},
            "response_format.json_schema.schema",
        ),
    ],
)
def test_a_bad_field_of_a_text_completion_is_named(shared_server, fields, param):
    body = {key: value for key, value in {"prompt": "hi", "max_tokens": 2, **fields}.items() if value is not None}
    assert_refused(lambda: shared_server.post(TEXT, body), 400, param)


BAD_BODIES: list[tuple[bytes, str | None]] = [
    (b"", None),
    (b"{", None),
    (b"nonsense", None),
    (b"[]", None),
    (b"null", None),
    (b'"x"', None),
    (b'{"messages": [{"role": "user", "content": "\xff"}]}', None),
    (b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}', None),
    (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "messages[0].content"),
    (b'{"messages": [{"role": "user", "content": "a"}], "stop": "\\udfff"}', "stop"),
    (b'{"messages": [{"role": "user", "content": "a"}], "\\ud800": 1}', "\\ud800"),
    (b'{"temperature": NaN}', "temperature"),
    (b'{"temperature": Infinity}', "temperature"),
    (b'{"temperature": -Infinity}', "temperature"),
    (b'{"temperature": 1e999}', "temperature"),
    (b'{"logit_bias": {"5": NaN}}', "logit_bias.5"),
    (b'[{"a": NaN}]', None),
    (b'{"temperature": 1, "temperature": 2}', "temperature"),
    (b'{"seed": ' + b"1" * 5000 + b"}", None),
    (b"[" * 100_000, None),
    (b'{"a":' * 100_000, None),
    (b'{"messages": ' + b"[" * 300 + b"]" * 300 + b"}", None),
    (b"{} {}", None),
    (b"\xef\xbb\xbf{}", None),
    (b"\x00" * 100, None),
    (b'{"messages": [{"role": "user", "content": "a\x00b"}]}', None),
]


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize", "/abort_request"])
@pytest.mark.parametrize(("body", "param"), BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_a_bad_body_is_a_400(shared_server, body, param, path):
    assert_refused(lambda: shared_server.post(path, content=body), 400, param)


@pytest.mark.parametrize("as_tokens", [False, True])
def test_a_prompt_that_cannot_fit_is_a_400_with_its_code(shared_server, as_tokens):
    prompt = [70] * 5000 if as_tokens else "wordy " * 300_000
    error = assert_refused(lambda: shared_server.post(TEXT, {"prompt": prompt}), 400, "prompt")
    assert error["code"] == "context_length_exceeded"
    messages = [{"role": "user", "content": "wordy " * 300_000}]
    error = assert_refused(lambda: shared_server.post(CHAT, {"messages": messages}), 400, "messages")
    assert error["code"] == "context_length_exceeded"


def test_more_tokens_than_fit_behind_the_prompt_are_a_400(shared_server):
    error = assert_refused(lambda: shared_server.post(TEXT, {"prompt": "hi", "max_tokens": 4096}), 400, "max_tokens")
    assert error["code"] == "context_length_exceeded"


def test_an_unknown_model_is_a_404(shared_server):
    error = assert_refused(lambda: shared_server.post(CHAT, {**GOOD, "model": "gpt-9"}), 404, "model")
    assert error["code"] == "model_not_found"
    assert "tiny" in error["message"]


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/models/nothing", "/../etc", "/%00", "/v1/chat", "/é%0a"])
def test_an_unknown_path_is_a_404_with_an_openai_body(shared_server, path):
    param = "model" if path.startswith("/v1/models/") else None
    assert_refused(lambda: shared_server.get(path), 404, param)


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/flush_cache"])
def test_a_wrong_method_is_a_405_with_an_openai_body(shared_server, path):
    assert_refused(lambda: shared_server.get(path), 405, None)
    answer = shared_server.get(path)
    assert answer.headers["allow"] == "POST"


def test_nul_bytes_are_text_like_any_other(shared_server):
    answer = shared_server.post(CHAT, {"messages": [{"role": "user", "content": "a\x00b"}], "stop": "\x00"})
    assert answer.status_code == 200


def test_deep_nesting_within_the_limit_is_served(shared_server):
    assert shared_server.post(CHAT, {**GOOD, "json_schema": deep(200)}).status_code == 200


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_is_too_large_is_a_413_even_for_a_client_that_sends_first_and_reads_later(shared_server, announced):
    body = json.dumps({**GOOD, "user": "x" * 10_000_000}).encode()

    def send() -> httpx.Response:
        content: Any = body if announced else (body[i : i + 65536] for i in range(0, len(body), 65536))
        return shared_server.post(CHAT, content=content)

    error = assert_refused(send, 413, None)
    assert error["code"] == "body_too_large"
    assert_unharmed(shared_server)


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(shared_server):
    host, port = shared_server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000000\r\n\r\n")
        started = time.monotonic()
        assert b" 413 " in connection.recv(1000)
        assert time.monotonic() - started < 5.0


def test_a_body_that_never_comes_is_given_up(make_server):
    server = make_server(body_timeout=0.2)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        assert b" 408 " in connection.recv(1000)


def test_a_close_miss_is_suggested(shared_server):
    error = shared_server.post(CHAT, {**GOOD, "temprature": 1}).json()["error"]
    assert "'temperature'" in error["message"]


@pytest.mark.parametrize("name", ["cache_prompt", "return_hidden_states", "prompt_logprobs", "truncate_prompt_tokens"])
def test_a_field_that_is_like_none_of_ours_is_told_without_a_guess(shared_server, name):
    error = shared_server.post(CHAT, {**GOOD, name: 1}).json()["error"]
    assert error["message"] == f"Unknown field {name!r}."


def test_a_response_format_of_an_unknown_type_is_told_before_its_other_fields(shared_server):
    body = {**GOOD, "response_format": {"type": "regex", "pattern": "a"}}
    message = assert_refused(lambda: shared_server.post(CHAT, body), 400, "response_format.type")["message"]
    assert "'structural_tag'" in message


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (CHAT, {"guided_json": {}}, "'json_schema'"),
        (TEXT, {"guided_regex": "a"}, "'regex'"),
        (CHAT, {"grammar": "root ::= 'a'"}, "'ebnf'"),
        (CHAT, {"prompt": "hi"}, "/v1/completions"),
        (TEXT, {"messages": MESSAGES}, "/v1/chat/completions"),
        (CHAT, {"echo": True}, "/v1/completions"),
        (CHAT, {"max_new_tokens": 5}, "'max_tokens'"),
        (CHAT, {"extra_body": {"regex": "a"}}, "beside 'model'"),
        ("/tokenize", {"grammar": "root ::= 'a'"}, "Unknown field 'grammar'."),
    ],
)
def test_a_field_that_means_something_elsewhere_is_told_with_what_to_use_here(shared_server, path, body, said):
    error = assert_refused(lambda: shared_server.post(path, body), 400, next(iter(body)))
    assert error["code"] == "unknown_field"
    assert said in error["message"]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", CHAT),
        ("/completions", TEXT),
        ("/models", "/v1/models"),
        ("/v1/v1/chat/completions", CHAT),
        ("/v1/chat/completion", CHAT),
        ("/v1/tokenize", "/tokenize"),
        ("/v1/embeddings", None),
        ("/v1/responses", None),
    ],
)
def test_a_path_that_is_nearly_one_of_ours_is_told_with_it(shared_server, path, meant):
    message = assert_refused(lambda: shared_server.post(path, GOOD), 404, None)["message"]
    assert message.endswith(f"Did you mean {meant!r}?" if meant else "/docs lists what there is.")


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/abort_request"])
def test_utility_endpoints_name_their_unknown_fields(shared_server, path):
    assert_refused(lambda: shared_server.post(path, {"nonsense": 1}), 400, "nonsense")


def test_detokenizing_an_id_the_tokenizer_does_not_have_is_a_400(shared_server):
    assert_refused(lambda: shared_server.post("/detokenize", {"tokens": [70, 10**6]}), 400, "tokens[1]")

"""Chat completions, as the openai client and raw bytes see them."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from bench.fake_scheduler import Behaviour
from scheduler.messages import ErrorInfo

MESSAGES = [{"role": "user", "content": "hello world"}]
CHAT = "/v1/chat/completions"


def events(text: str) -> list[Any]:
    """The JSON of a stream's events; its last must be [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def content_of(chunks: list[Any], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_an_answer_parses_strictly_as_openais_own_type(server):
    answer = server.post(CHAT, {"model": "tiny", "messages": MESSAGES, "max_tokens": 8})
    assert answer.status_code == 200
    parsed = ChatCompletion.model_validate(answer.json(), strict=True)
    assert parsed.id.startswith("chatcmpl-")
    assert parsed.choices[0].finish_reason == "length"
    assert parsed.usage.completion_tokens == 8
    assert parsed.usage.total_tokens == parsed.usage.prompt_tokens + 8
    assert parsed.system_fingerprint.startswith("fp_")


@pytest.mark.parametrize("tokens_per_step", [1, 3])
@pytest.mark.parametrize("stop", [None, "wor", ["x", "hello world"], "\n"])
def test_joined_deltas_equal_the_unstreamed_content(make_server, tokens_per_step, stop):
    server = make_server(behaviour=Behaviour(tokens_per_step=tokens_per_step))
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 30, **({"stop": stop} if stop else {})}
    whole = server.post(CHAT, body).json()["choices"][0]
    chunks = events(server.post(CHAT, {**body, "stream": True}).text)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
    assert chunks[-1]["choices"][0]["stop_reason"] == whole["stop_reason"]
    assert content_of(chunks) == whole["message"]["content"]
    assert whole["finish_reason"] == ("stop" if stop else "length")
    for text in [stop] if isinstance(stop, str) else stop or []:
        assert text not in content_of(chunks)


def test_every_token_with_text_is_one_event(server):
    server.behaviour.tokens_of = lambda request, choice: [70] * 12
    chunks = events(server.post(CHAT, {"messages": MESSAGES, "max_tokens": 12, "stream": True}).text)
    assert sum(bool(chunk["choices"][0]["delta"].get("content")) for chunk in chunks) == 12


def test_the_openai_client_streams_several_choices(server):
    server.behaviour.tokens_of = lambda request, choice: [65 + choice, 70]
    with server.openai() as client:
        stream = client.chat.completions.create(model="tiny", messages=MESSAGES, n=3, stream=True)
        texts = {0: "", 1: "", 2: ""}
        for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert len(set(texts.values())) == 3


def test_usage_comes_last_when_asked_for_and_counts_the_prompt_once(server):
    server.behaviour.cached_tokens = 4
    body = {"messages": MESSAGES, "max_tokens": 5, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    chunks = events(server.post(CHAT, body).text)
    assert chunks[-1]["choices"] == []
    usage = ChatCompletionChunk.model_validate(chunks[-1], strict=True).usage
    assert usage.completion_tokens == 10
    assert usage.prompt_tokens == len(server.scheduler.requests()[0].prompt_token_ids)
    assert usage.prompt_tokens_details.cached_tokens == 4
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    body = {**body, "stream": False, "stream_options": None}
    assert server.post(CHAT, body).json()["usage"]["completion_tokens"] == 10


def test_continuous_usage_grows_with_every_chunk(server):
    server.behaviour.tokens_of = lambda request, choice: [70] * 4
    body = {"messages": MESSAGES, "max_tokens": 4, "stream": True, "stream_options": {"continuous_usage_stats": True}}
    counts = [chunk["usage"]["completion_tokens"] for chunk in events(server.post(CHAT, body).text)]
    assert counts == [0, 1, 2, 3, 4, 4]


def test_logprobs_have_one_entry_a_token_and_their_bytes_are_the_content(server):
    snowman = list("☃ é".encode())
    byte_ids = [server.context.tokenizer.vocabulary.token_bytes.index(bytes([byte])) for byte in snowman]
    server.behaviour.tokens_of = lambda request, choice: [*byte_ids, 2]
    server.behaviour.eos_token_ids = frozenset({2})
    body = {"messages": MESSAGES, "logprobs": True, "max_tokens": 50}
    whole = ChatCompletion.model_validate(server.post(CHAT, body).json(), strict=True).choices[0]
    assert whole.message.content == "☃ é"
    assert bytes(b for entry in whole.logprobs.content for b in entry.bytes) == "☃ é".encode()
    assert len(whole.logprobs.content) == len(byte_ids) + 1
    assert all(entry.top_logprobs == [] for entry in whole.logprobs.content)
    chunks = events(server.post(CHAT, {**body, "stream": True}).text)
    streamed = [
        entry
        for chunk in chunks
        if chunk["choices"][0]["logprobs"]
        for entry in chunk["choices"][0]["logprobs"]["content"]
    ]
    assert streamed == [entry.model_dump() for entry in whole.logprobs.content]
    top = server.post(CHAT, {**body, "top_logprobs": 3}).json()["choices"][0]["logprobs"]["content"][0]
    assert len(top["top_logprobs"]) == 3


def test_logprobs_of_a_cut_stop_string_are_cut_too(server):
    ids = server.context.tokenizer.encode_plain("abcXYZdef")
    server.behaviour.tokens_of = lambda request, choice: ids
    body = {"messages": MESSAGES, "logprobs": True, "stop": "XYZ"}
    whole = server.post(CHAT, body).json()["choices"][0]
    assert whole["message"]["content"] == "abc"
    assert "".join(entry["token"] for entry in whole["logprobs"]["content"]) == "abc"
    chunks = events(server.post(CHAT, {**body, "stream": True}).text)
    tokens = [e["token"] for c in chunks if c["choices"][0]["logprobs"] for e in c["choices"][0]["logprobs"]["content"]]
    assert "".join(tokens) == "abc"


def test_ill_formed_bytes_become_replacement_characters_and_every_event_is_json(server):
    lone = server.context.tokenizer.vocabulary.token_bytes.index(b"\x80")
    server.behaviour.tokens_of = lambda request, choice: [70, lone, lone, 71]
    body = {"messages": MESSAGES}
    whole = server.post(CHAT, body).json()["choices"][0]["message"]["content"]
    assert whole.count("\ufffd") == 2
    assert content_of(events(server.post(CHAT, {**body, "stream": True}).text)) == whole


def test_token_ids_come_back_when_asked_for(server):
    body = {"messages": MESSAGES, "max_tokens": 5, "return_token_ids": True}
    whole = server.post(CHAT, body).json()
    sent = server.scheduler.requests()[0].prompt_token_ids
    assert whole["prompt_token_ids"] == sent
    assert whole["choices"][0]["token_ids"] == sent[:5]
    chunks = events(server.post(CHAT, {**body, "stream": True}).text)
    assert chunks[0]["prompt_token_ids"] == sent
    assert [i for chunk in chunks for i in chunk["choices"][0].get("token_ids", [])] == sent[:5]


def test_special_tokens_are_shown_on_request_only(server):
    server.behaviour.tokens_of = lambda request, choice: [70, 2]
    server.behaviour.eos_token_ids = frozenset({2})
    body = {"messages": MESSAGES}
    hidden = server.post(CHAT, body).json()["choices"][0]["message"]["content"]
    shown = server.post(CHAT, {**body, "skip_special_tokens": False}).json()["choices"][0]["message"]["content"]
    assert shown == hidden + "<|im_end|>"


def test_an_error_after_the_start_is_an_error_event_and_ends_the_stream(server):
    server.behaviour.fail_after = 3
    server.behaviour.step_seconds = 0.02
    text = server.post(CHAT, {"messages": MESSAGES, "stream": True}).text
    last = text.split("\n\n")[-2]
    assert last.startswith("event: error\ndata: ")
    error = json.loads(last.split("data: ")[1])["error"]
    assert error == {"message": "The row went bad.", "type": "server_error", "param": None, "code": "internal"}
    assert "[DONE]" not in text
    with server.openai() as client, pytest.raises(openai.APIError, match="The row went bad"):
        list(client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 429, 503])
def test_a_rejection_is_the_status_of_a_streamed_request_too(server, stream, status):
    server.behaviour.reject = ErrorInfo(status=status, message="No.", param="response_format", code="nope")
    answer = server.post(CHAT, {"messages": MESSAGES, "stream": stream})
    assert answer.status_code == status
    assert answer.json()["error"]["message"] == "No."
    assert answer.json()["error"]["param"] == "response_format"
    assert ("retry-after" in answer.headers) == (status != 400)


def test_generation_defaults_hold_unless_the_request_says_otherwise(make_server, assets):
    from dataclasses import replace

    server = make_server(with_assets=replace(assets, generation_defaults={"temperature": 0.2, "top_k": 50}))
    server.post(CHAT, {"messages": MESSAGES, "max_tokens": 1})
    server.post(CHAT, {"messages": MESSAGES, "max_tokens": 1, "temperature": 0, "top_k": -1})
    first, second = (request.sampling for request in server.scheduler.requests())
    assert (first.temperature, first.top_k) == (0.2, 50)
    assert (second.temperature, second.top_k) == (0.0, -1)


def test_sampling_fields_reach_the_scheduler(server):
    body = {
        "messages": MESSAGES,
        "max_completion_tokens": 9,
        "min_tokens": 2,
        "top_p": 0.5,
        "min_p": 0.1,
        "seed": -(2**63),
        "repetition_penalty": 1.1,
        "penalize_prompt": True,
        "frequency_penalty": -1,
        "presence_penalty": 2,
        "logit_bias": {"5": -100},
        "allowed_token_ids": [5, 6, 7],
        "bad_words": ["fox"],
        "stop": ["a", "b"],
        "stop_token_ids": [3],
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 2,
        "priority": 4,
    }
    assert server.post(CHAT, body).status_code == 200
    request = server.scheduler.requests()[0]
    sampling = request.sampling
    assert request.priority == 4
    assert (sampling.max_tokens, sampling.min_tokens, sampling.seed) == (9, 2, -(2**63))
    assert (sampling.top_p, sampling.min_p, sampling.frequency_penalty, sampling.presence_penalty) == (0.5, 0.1, -1, 2)
    assert sampling.repetition_penalty == 1.1
    assert sampling.penalize_prompt
    assert sampling.logit_bias == {5: -100}
    assert sampling.allowed_token_ids == (5, 6, 7)
    encode = server.context.tokenizer.encode_plain
    assert set(sampling.bad_words_token_ids) == {tuple(encode("fox")), tuple(encode(" fox"))}
    assert sampling.stop == (b"a", b"b")
    assert sampling.stop_token_ids == (3,)
    assert sampling.include_stop_str_in_output
    assert sampling.ignore_eos
    assert sampling.logprobs == 2


def test_unset_max_tokens_reaches_to_the_end_of_what_fits(make_server):
    server = make_server(behaviour=Behaviour(context_length=4096, kv_cache_tokens=100))
    server.post(CHAT, {"messages": MESSAGES})
    request = server.scheduler.requests()[0]
    assert request.sampling.max_tokens == 100 - len(request.prompt_token_ids)


def test_the_final_message_is_continued_without_its_end(server):
    messages = [*MESSAGES, {"role": "assistant", "content": "The quick"}]
    answer = server.post(CHAT, {"messages": messages, "max_tokens": 1, "continue_final_message": True})
    assert answer.status_code == 200
    text = server.context.tokenizer.decode(server.scheduler.requests()[0].prompt_token_ids, skip_special_tokens=False)
    assert text.endswith("<|im_start|>assistant\nThe quick")


def test_a_constraint_reaches_the_scheduler_with_the_schemas_key_order(server):
    schema = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"const": 1.0}}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}
    server.post(CHAT, {"messages": MESSAGES, "max_tokens": 1, "response_format": form})
    grammar = server.scheduler.requests()[0].grammar
    assert grammar.kind == "json_schema"
    assert grammar.strict
    assert grammar.value == json.dumps(schema, separators=(",", ":"))

"""Text completions: every form of prompt, echo, log-probabilities, best_of."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Completion

URL = "/v1/completions"


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def texts_of(chunks: list[Any], count: int) -> list[str]:
    texts = [""] * count
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    return texts


PROMPTS = [
    ("hello", 1),
    (["hello", "world"], 2),
    ([70, 71, 72], 1),
    ([[70, 71], [72]], 2),
]


@pytest.mark.parametrize(("prompt", "count"), PROMPTS)
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("echo", [False, True])
def test_every_form_of_prompt_gives_the_same_streamed_and_whole(server, prompt, count, n, echo):
    body = {"model": "tiny", "prompt": prompt, "n": n, "max_tokens": 6, "echo": echo, "stop": "zzz"}
    parsed = Completion.model_validate(server.post(URL, body).json(), strict=True)
    assert [choice.index for choice in parsed.choices] == list(range(count * n))
    assert parsed.usage.completion_tokens == 6 * count * n
    chunks = events(server.post(URL, {**body, "stream": True}).text)
    assert texts_of(chunks, count * n) == [choice.text for choice in parsed.choices]
    finished = [choice for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert len(finished) == count * n


def test_echo_with_logprobs_scores_the_prompt(server):
    body = {"prompt": "hello world", "echo": True, "logprobs": 2, "max_tokens": 3}
    whole = server.post(URL, body).json()["choices"][0]
    logprobs = Completion.construct(**server.post(URL, body).json()).choices[0].logprobs
    num_prompt = len(server.scheduler.requests()[0].prompt_token_ids)
    assert whole["text"].startswith("hello world")
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == num_prompt + 3
    assert logprobs.token_logprobs[0] is None
    assert logprobs.token_logprobs[1] == -0.5
    assert "".join(logprobs.tokens) == whole["text"]
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert whole["text"].startswith(token, offset)
    chunks = events(server.post(URL, {**body, "stream": True}).text)
    streamed = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
    assert [token for part in streamed for token in part["tokens"]] == logprobs.tokens
    assert [offset for part in streamed for offset in part["text_offset"]] == logprobs.text_offset
    assert texts_of(chunks, 1) == [whole["text"]]


@pytest.mark.parametrize("logprobs", [None, 0])
def test_a_prompt_can_be_scored_without_generating(server, logprobs):
    body = {"prompt": "hello world", "echo": True, "max_tokens": 0, "logprobs": logprobs}
    answer = server.post(URL, body).json()
    assert answer["choices"][0]["text"] == "hello world"
    assert answer["usage"]["completion_tokens"] == 0
    assert (answer["choices"][0]["logprobs"] is None) == (logprobs is None)
    assert texts_of(events(server.post(URL, {**body, "stream": True}).text), 1) == ["hello world"]


def test_parts_of_characters_keep_apart_in_logprobs(server):
    table = server.context.tokenizer.vocabulary.token_bytes
    server.behaviour.tokens_of = lambda request, choice: [table.index(bytes([byte])) for byte in "€".encode()]
    choice = server.post(URL, {"prompt": "a", "logprobs": 1}).json()["choices"][0]
    assert choice["text"] == "€"
    assert choice["logprobs"]["tokens"] == ["bytes:\\xe2", "bytes:\\x82", "bytes:\\xac"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 0]


def test_best_of_shows_the_likeliest_and_counts_all(server, monkeypatch):
    import bench.fake_scheduler as fake
    from scheduler.messages import TokenLogprob

    monkeypatch.setattr(fake, "_logprob", lambda token_id, top: TokenLogprob(token_id, -float(token_id), []))
    server.behaviour.tokens_of = lambda request, choice: [90 - choice] * 4
    answer = server.post(URL, {"prompt": "a", "best_of": 3, "max_tokens": 4}).json()
    assert len(answer["choices"]) == 1
    assert answer["choices"][0]["text"] == server.context.tokenizer.decode([88] * 4)
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["choices"][0]["logprobs"] is None


def test_plain_prompts_begin_with_bos_only_where_the_model_says_so(make_server, assets):
    from dataclasses import replace

    server = make_server(with_assets=replace(assets, add_bos=True))
    for prompt in ("hello", "<|endoftext|>hello"):
        server.post(URL, {"prompt": prompt, "max_tokens": 1})
    server.post(URL, {"prompt": "hello", "max_tokens": 1, "add_special_tokens": False})
    first, second, third = (request.prompt_token_ids for request in server.scheduler.requests())
    assert first == second == [0, *third]


def test_a_refused_prompt_of_several_ends_the_others(server, wait_until):
    server.behaviour.is_stalled = True
    answer = server.post(URL, {"prompt": ["a", "b" * 40], "max_tokens": 4090})
    assert answer.status_code == 400
    assert not server.scheduler.requests()

"""Chat completions, as the openai client and raw bytes see them."""

from __future__ import annotations

import json
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk

MESSAGES = [{"role": "user", "content": "hello world"}]


def events(text: str) -> list[Any]:
    """The JSON of a stream's events; its last must be [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_an_answer_parses_strictly_as_openais_own_type(server):
    answer = server.post("/v1/chat/completions", {"model": "tiny", "messages": MESSAGES, "max_tokens": 8})
    assert answer.status_code == 200
    body = answer.json()
    parsed = ChatCompletion.model_validate(body, strict=True)
    assert parsed.id.startswith("chatcmpl-")
    assert parsed.choices[0].finish_reason == "length"
    assert parsed.usage.completion_tokens == 8
    assert parsed.usage.total_tokens == parsed.usage.prompt_tokens + 8


def test_joined_deltas_equal_the_unstreamed_content(server):
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 20}
    whole = server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    chunks = events(server.post("/v1/chat/completions", {**body, "stream": True}).text)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == whole
    assert whole

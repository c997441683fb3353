"""What sampling promises, on the real model through OpenAI's client: seeds, stops, penalties, log-probabilities."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch

MODEL = "SmolLM2-135M-Instruct"
MINE: dict[str, Any] = {
    "model": MODEL,
    "prompt": "The old lighthouse",
    "max_tokens": 24,
    "temperature": 0.9,
    "top_p": 0.95,
    "frequency_penalty": 0.6,
    "presence_penalty": 0.3,
    "seed": -(2**63),
    "n": 2,
    "repetition_penalty": 1.1,
    "min_tokens": 4,
    "priority": -1,  # the first to lose its pages
}


def chat(client: openai.OpenAI, text: str, **options: Any) -> Any:
    messages: list[Any] = [{"role": "user", "content": text}]
    return client.chat.completions.create(**{"model": MODEL, "messages": messages, "temperature": 0, **options})


def streamed_text(client: openai.OpenAI, text: str, **options: Any) -> tuple[str, str]:
    content, reason = "", ""
    for chunk in chat(client, text, stream=True, **options):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return content, reason


@pytest.fixture(scope="module")
def small_server(start_server: Callable[..., Any]) -> Any:
    """So few pages that a batch cannot all stay."""
    running = start_server("--dtype", "float32", "--kv-cache-tokens", "480", "--page-size", "4")
    running.wait_ready()
    return running


async def texts_of(server: Any, bodies: list[dict[str, Any]]) -> list[list[str]]:
    async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
        answers = await asyncio.gather(*(client.post(f"{server.url}/v1/completions", json=body) for body in bodies))
    assert [answer.status_code for answer in answers] == [200] * len(bodies)
    return [[choice["text"] for choice in answer.json()["choices"]] for answer in answers]


def neighbours(first: int) -> list[dict[str, Any]]:
    """Thirty other choices with every kind of parameter; seeds of their own or none."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1.3, "top_k": 20},
        {"frequency_penalty": 2, "temperature": 0},
        {"repetition_penalty": 1.5, "penalize_prompt": True, "seed": first},
        {"min_tokens": 10, "stop": ["e"], "min_p": 0.05},
    ]
    return [
        {"model": MODEL, "prompt": f"Story {first + i}: once", "max_tokens": 20, **kinds[i % len(kinds)]}
        for i in range(30)
    ]


async def test_a_seed_gives_the_same_tokens_alone_in_a_batch_of_32_and_after_preemption(small_server: Any) -> None:
    alone = (await texts_of(small_server, [MINE]))[0]
    assert alone[0] != alone[1]
    for first in (0, 1000):
        before = small_server.stats()["preemptions_total"]
        together = await texts_of(small_server, [*neighbours(first), MINE])
        assert together[-1] == alone
        assert small_server.stats()["preemptions_total"] > before


def test_without_a_seed_runs_differ_and_so_do_choices(client: openai.OpenAI) -> None:
    texts = [
        choice.message.content
        for _ in range(2)
        for choice in chat(client, "Tell me a story.", n=3, temperature=1.0, max_tokens=12).choices
    ]
    assert len(set(texts)) == 6


async def test_a_neighbours_penalty_changes_no_answer(server: Any) -> None:
    plain = {"model": MODEL, "prompt": "The largest ocean is", "temperature": 0, "seed": 7, "max_tokens": 24}
    penalised = {
        "model": MODEL,
        "prompt": "Four animals met on a walk, and four animals",
        "temperature": 0,
        "frequency_penalty": 1.2,
        "max_tokens": 24,
    }
    alone = [(await texts_of(server, [body]))[0] for body in (plain, penalised)]
    for order in ([plain, penalised], [penalised, plain]):
        together = await texts_of(server, order)
        assert together == (alone if order[0] is plain else alone[::-1])


def test_frequency_and_presence_count_no_token_of_the_prompt(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "prompt": "red red red red red red red", "temperature": 0}
    plain = client.completions.create(max_tokens=1, **options).choices[0].text
    assert plain == " red"
    fields: dict[str, Any] = {"frequency_penalty": 2, "presence_penalty": 2, "extra_body": {"repetition_penalty": 2}}
    assert client.completions.create(max_tokens=1, **options, **fields).choices[0].text == plain
    fields["extra_body"] = {"repetition_penalty": 2, "penalize_prompt": True}
    assert client.completions.create(max_tokens=1, **options, **fields).choices[0].text != plain


@pytest.mark.parametrize(
    "ends",
    [
        {"stop": ["."]},
        {"stop": ["e", " ", "."]},
        {"extra_body": {"stop_token_ids": [30, 28, 253]}},
        {"stop": ["t"], "extra_body": {"stop_token_ids": [30], "include_stop_str_in_output": True}},
        {},
    ],
    ids=["one string", "strings", "ids", "both", "end of text"],
)
def test_nothing_ends_an_answer_below_min_tokens(client: openai.OpenAI, ends: dict[str, Any]) -> None:
    extra = {**ends.get("extra_body", {}), "min_tokens": 25}
    answer = chat(client, "What is the capital of France?", max_tokens=40, **{**ends, "extra_body": extra})
    assert 25 <= answer.usage.completion_tokens <= 40
    assert answer.choices[0].finish_reason == "stop" or answer.usage.completion_tokens == 40
    free = chat(client, "What is the capital of France?", max_tokens=40, **ends)
    assert free.usage.completion_tokens < 25


def test_text_before_a_stop_string_inside_a_token_is_kept_streamed_and_whole(client: openai.OpenAI) -> None:
    whole = chat(client, "What is the capital of France?", max_tokens=20).choices[0].message.content
    for stop in {whole[i : i + 2] for i in range(1, 14)}:
        options: dict[str, Any] = {"stop": [stop], "max_tokens": 20}
        cut = whole[: whole.index(stop)]
        answer = chat(client, "What is the capital of France?", logprobs=True, **options).choices[0]
        assert (answer.message.content, answer.finish_reason, answer.stop_reason) == (cut, "stop", stop)
        assert bytes(byte for entry in answer.logprobs.content for byte in entry.bytes).decode() == cut
        assert streamed_text(client, "What is the capital of France?", **options) == (cut, "stop")
        options["extra_body"] = {"include_stop_str_in_output": True}
        assert streamed_text(client, "What is the capital of France?", **options) == (cut + stop, "stop")


def lone_byte_token(server: Any) -> int:
    """A token that is one continuation byte of UTF-8."""
    for token_id in range(600):
        if server.post("/detokenize", json={"tokens": [token_id]}).json()["prompt"] == "\ufffd":
            return token_id
    raise LookupError("the tokenizer has no lone bytes")


def test_ill_formed_bytes_are_replacement_characters_and_never_an_error(server: Any, client: openai.OpenAI) -> None:
    bias = {str(lone_byte_token(server)): 100}
    options: dict[str, Any] = {"temperature": 2, "max_tokens": 12, "logit_bias": bias, "seed": 1}
    answer = chat(client, "Three emoji.", logprobs=True, **options).choices[0]
    assert "\ufffd" in answer.message.content
    raw = bytes(byte for entry in answer.logprobs.content for byte in entry.bytes)
    assert raw.decode("utf-8", "replace") == answer.message.content
    assert streamed_text(client, "Three emoji.", **options) == (answer.message.content, answer.finish_reason)


def test_logprobs_without_top_logprobs_join_to_the_content_also_within_characters(client: openai.OpenAI) -> None:
    for text in ("Hi!", "Repeat: 日本語 😀 é 日本語 😀"):
        answer = chat(client, text, logprobs=True, max_tokens=24).choices[0]
        entries = answer.logprobs.content
        assert all(entry.top_logprobs == [] for entry in entries)
        joined = bytes(byte for entry in entries for byte in entry.bytes)
        assert joined.decode("utf-8", "replace") == answer.message.content


def test_no_logprob_under_a_grammar_is_infinite(server: Any) -> None:
    body = {
        "messages": [{"role": "user", "content": "A city."}],
        "max_tokens": 40,
        "logprobs": True,
        "top_logprobs": 20,
        "json_schema": {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]},
    }
    raw = server.post("/v1/chat/completions", json=body).text

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in the body")

    entries = json.loads(raw, parse_constant=refuse)["choices"][0]["logprobs"]["content"]
    assert len(entries) > 3
    assert all(-9999.0 <= top["logprob"] <= 0 for entry in entries for top in [entry, *entry["top_logprobs"]])
    assert all(len(entry["top_logprobs"]) == 20 for entry in entries)


def test_prompt_and_output_logprobs_are_those_of_transformers(client: openai.OpenAI, smollm2_gguf: Path) -> None:
    from transformers import AutoModelForCausalLM

    reference: Any = AutoModelForCausalLM.from_pretrained(
        smollm2_gguf.parent, gguf_file=smollm2_gguf.name, dtype=torch.float32
    )
    options: dict[str, Any] = {"model": MODEL, "prompt": "Rivers flow to the sea: 日本", "echo": True, "logprobs": 20}
    penalties: dict[str, Any] = {"frequency_penalty": 2, "logit_bias": {"30": 50}, "temperature": 0.7, "seed": 3}
    extra = {"extra_body": {"return_token_ids": True}}
    for fields in ({"max_tokens": 0}, {"max_tokens": 6, **penalties}):
        choice = client.completions.create(**options, **fields, **extra).choices[0]
        token_ids = [*choice.prompt_token_ids, *choice.token_ids]
        assert choice.logprobs.token_logprobs[0] is None
        assert len(choice.logprobs.tokens) == len(token_ids) == len(choice.prompt_token_ids) + fields["max_tokens"]
        with torch.no_grad():
            expected = reference(torch.tensor([token_ids])).logits[0].float().log_softmax(dim=1)
        for position in range(1, len(token_ids)):
            row = expected[position - 1]
            ours = choice.logprobs.token_logprobs[position]
            assert ours == pytest.approx(float(row[token_ids[position]]), abs=1e-3)
            # Two tokens may have one spelling and then share an entry; the drawn one may be a 21st.
            top = sorted(choice.logprobs.top_logprobs[position].values(), reverse=True)[:18]
            assert top == pytest.approx(row.topk(18).values.tolist(), abs=1e-3)


@pytest.mark.parametrize("count", [0, 1, 20])
def test_as_many_top_logprobs_as_asked_for(client: openai.OpenAI, count: int) -> None:
    entries = chat(client, "Hi!", logprobs=True, top_logprobs=count, max_tokens=3).choices[0].logprobs.content
    assert [len(entry.top_logprobs) for entry in entries] == [count] * len(entries)
    text = client.completions.create(model=MODEL, prompt="Hi", logprobs=count, max_tokens=2, temperature=0).choices[0]
    assert [len(top) for top in text.logprobs.top_logprobs] == [max(count, 1)] * 2


def test_best_of_shows_the_likeliest_of_those_that_n_would_show(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "prompt": "Once", "max_tokens": 8, "seed": 4, "logprobs": 0}
    every = client.completions.create(n=6, **options).choices
    best = client.completions.create(n=2, best_of=6, **options)
    ranked = sorted(every, key=lambda choice: -sum(choice.logprobs.token_logprobs) / len(choice.logprobs.tokens))
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    assert best.usage.completion_tokens == sum(len(choice.logprobs.tokens) for choice in every)

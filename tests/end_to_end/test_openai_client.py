"""The real server and the real SmolLM2 through OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest

MODEL = "SmolLM2-135M-Instruct"
CAPITAL: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


def chat(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": CAPITAL, "temperature": 0, **options})


def streamed(client: openai.OpenAI, **options: Any) -> tuple[dict[int, str], dict[int, str], Any]:
    """Text and finish reason of each choice, and the usage."""
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    usage = None
    for chunk in chat(client, stream=True, stream_options={"include_usage": True}, **options):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    return texts, reasons, usage


def test_chat_answers_a_question(client: openai.OpenAI) -> None:
    answer = chat(client, max_tokens=32)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == MODEL
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 24},
        {"max_tokens": 24, "temperature": 1.0, "seed": 7, "n": 3},
        {"max_tokens": 24, "temperature": 0.8, "seed": 3, "frequency_penalty": 0.5, "stop": ["\n", "language"]},
        {"max_tokens": 30, "messages": [{"role": "user", "content": "Repeat: 😀 é 日本語 👩‍👩‍👧"}]},
    ],
)
def test_the_stream_equals_the_unstreamed_answer(client: openai.OpenAI, options: dict[str, Any]) -> None:
    whole = chat(client, **options)
    texts, reasons, usage = streamed(client, **options)
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert not any("\ufffd" in text for text in texts.values()) or options["max_tokens"] == 30


def test_choices_differ_and_a_seed_repeats_them(client: openai.OpenAI) -> None:
    options = {"n": 4, "temperature": 1.0, "max_tokens": 12, "seed": 11}
    first = [choice.message.content for choice in chat(client, **options).choices]
    assert len(set(first)) > 1
    assert [choice.message.content for choice in chat(client, **options).choices] == first


def test_logprobs_are_of_the_tokens_that_were_chosen(client: openai.OpenAI) -> None:
    answer = chat(client, max_tokens=8, logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens or answer.choices[0].finish_reason == "stop"
    for entry in entries:
        assert math.isfinite(entry.logprob)
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # greedy takes the most likely
    text = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert text.startswith(answer.choices[0].message.content)


def test_a_stop_string_cuts_exactly_where_it_begins(client: openai.OpenAI) -> None:
    whole = chat(client, max_tokens=32).choices[0].message.content
    stop = whole[9:13]  # inside a word, across tokens
    answer = chat(client, max_tokens=32, stop=[stop])
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_max_tokens_ends_with_length(client: openai.OpenAI) -> None:
    answer = chat(client, max_completion_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3


def test_completions_take_text_and_token_ids_and_batches_of_both(client: openai.OpenAI, server: Any) -> None:
    texts = ["The capital of France is", "1, 2, 3,"]
    ids = [server.post("/tokenize", json={"model": MODEL, "prompt": text}).json()["tokens"] for text in texts]

    def complete(prompt: Any, **options: Any) -> list[str]:
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0, **options)
        return [choice.text for choice in sorted(answer.choices, key=lambda choice: choice.index)]

    alone = [complete(text)[0] for text in texts]
    assert "Paris" in alone[0]
    assert complete(texts) == alone
    assert complete(ids[0]) == alone[:1]
    assert complete(ids) == alone
    assert complete(texts[0], echo=True) == [texts[0] + alone[0]]
    chunks = client.completions.create(model=MODEL, prompt=texts[0], max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == alone[0]


def test_tokenize_and_detokenize_are_inverse(server: Any) -> None:
    text = "Grüße, 世界! <|im_end|> 123"
    tokens = server.post("/tokenize", json={"model": MODEL, "prompt": text}).json()["tokens"]
    assert server.post("/detokenize", json={"model": MODEL, "tokens": tokens}).json()["prompt"] == text


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "is_capital": {"type": "boolean"}},
    "required": ["city", "is_capital"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_fits_the_schema_asked_for(client: openai.OpenAI, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    options: dict[str, Any] = {"response_format": form, "max_tokens": 128}
    if stream:
        texts, reasons, _ = streamed(client, **options)
        text, reason = texts[0], reasons[0]
    else:
        choice = chat(client, **options).choices[0]
        text, reason = choice.message.content, choice.finish_reason
    assert reason == "stop"
    jsonschema.validate(json.loads(text), SCHEMA)


async def test_sixteen_clients_at_once_get_what_each_gets_alone(server: Any) -> None:
    questions = [f"Say the number {number} and a colour." for number in range(16)]
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:

        async def ask(question: str) -> str:
            messages: list[Any] = [{"role": "user", "content": question}]
            answer = await client.chat.completions.create(
                model=MODEL, messages=messages, max_tokens=16, temperature=0.9, seed=len(question)
            )
            return answer.choices[0].message.content or ""

        together = await asyncio.gather(*map(ask, questions))
        alone = [await ask(question) for question in questions[:3]]
    assert together[:3] == alone


class City(pydantic.BaseModel):
    city: Literal["Paris", "Oslo"]


def final(client: openai.OpenAI, helper: str, **options: Any) -> Any:
    """The message of a whole answer as a helper of the client leaves it, with what it parsed."""
    options = {"model": MODEL, "messages": CAPITAL, "temperature": 0, "max_tokens": 64, **options}
    if helper == "parse":
        return client.chat.completions.parse(**options).choices[0].message
    with client.chat.completions.stream(**options) as stream:
        return stream.get_final_completion().choices[0].message


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("helper", ["parse", "stream"])
def test_what_a_helper_of_the_client_parsed_can_be_sent_back(client: openai.OpenAI, helper: str) -> None:
    message = final(client, helper, response_format=City)
    assert isinstance(message.parsed, City)
    for said in (message, message.model_dump()):
        assert chat(client, messages=[*CAPITAL, said, *CAPITAL], max_tokens=1).choices
    tools = [openai.pydantic_function_tool(City, name="show_city")]
    message = final(client, helper, tools=tools, tool_choice="required", parallel_tool_calls=False)
    call = message.tool_calls[0]
    assert isinstance(call.function.parsed_arguments, City)
    for said in (message, message.model_dump()):
        result = {"role": "tool", "tool_call_id": call.id, "content": "shown"}
        history = [*CAPITAL, said, result]
        assert chat(client, messages=history, tools=tools, tool_choice="none", max_tokens=1).choices


def test_a_repeated_prompt_comes_from_the_prefix_cache(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Tell me about rivers. " * 20}]
    first = chat(client, messages=messages, max_tokens=4)
    again = chat(client, messages=messages, max_tokens=4)
    assert again.usage.prompt_tokens_details.cached_tokens >= 64
    assert again.choices[0].message.content == first.choices[0].message.content


@pytest.mark.parametrize(
    ("options", "error", "param"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError, "model"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, openai.BadRequestError, "messages"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"top_p": 1.5}, openai.BadRequestError, "top_p"),
        ({"n": 0}, openai.BadRequestError, "n"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"stop": ["x"] * 1000}, openai.BadRequestError, "stop"),
        ({"logit_bias": {"999999": 1}}, openai.BadRequestError, "logit_bias"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, openai.BadRequestError, "messages"),
        ({"extra_body": {"no_such_field": 1}}, openai.BadRequestError, "no_such_field"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "wrong"}}}},
            openai.BadRequestError,
            "response_format",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_mistake_is_a_4xx_that_names_the_field(
    client: openai.OpenAI, options: dict[str, Any], error: type[openai.APIStatusError], param: str, stream: bool
) -> None:
    with pytest.raises(error) as caught:
        chat(client, stream=stream, **{"max_tokens": 4, **options})
    body = caught.value.body
    assert isinstance(body, dict)
    assert set(body) == {"message", "type", "param", "code"}
    assert str(body["param"]).startswith(param)


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")

"""The real model in every kind of form: what holds beside it, what is refused and how."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import openai
import pytest

MODEL = "SmolLM2-135M-Instruct"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SCHEMA = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 99}, "colour": {"enum": ["red", "blue"]}},
    "required": ["size", "colour"],
    "additionalProperties": False,
}


def body(path: str, text: str = "Describe the <f> briefly.", **fields: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    return {"model": MODEL, **asked, **fields}


def response_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def is_of_the_schema(text: str) -> None:
    jsonschema.validate(json.loads(text), SCHEMA)


def matches(pattern: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        assert re.fullmatch(pattern, text), text

    return check


def is_in_its_tag(text: str) -> None:
    assert text.startswith("<f>")
    assert text.endswith("</f>")
    is_of_the_schema(text[3:-4])


TAG = {
    "type": "tag",
    "begin": "<f>",
    "content": {"type": "json_schema", "json_schema": SCHEMA},
    "end": "</f>",
}
FORMS: dict[str, tuple[dict[str, Any], Callable[[str], None]]] = {
    "json_schema": ({"response_format": response_format(SCHEMA)}, is_of_the_schema),
    "xgrammar": ({"json_schema": SCHEMA, "grammar_backend": "xgrammar"}, is_of_the_schema),
    "regex": ({"regex": r"[a-c]{2,4}-\d\d\.?"}, matches(r"[a-c]{2,4}-\d\d\.?")),
    "choice": ({"choice": ["spam", "no spam", "a.b*"]}, matches(r"spam|no spam|a\.b\*")),
    "gbnf": ({"ebnf": 'root ::= "x" [0-9]{1,5} "."'}, matches(r"x[0-9]{1,5}\.")),
    "lark": ({"ebnf": 'start: "x" /[0-9]{1,5}/ "."'}, matches(r"x[0-9]{1,5}\.")),
    "structural_tag": ({"response_format": {"type": "structural_tag", "format": TAG}}, is_in_its_tag),
}
HOSTILE: dict[str, Any] = {
    "min_tokens": 90,
    "max_tokens": 120,
    "ignore_eos": True,
    "stop": ["}", "1", "a", ">"],
    "logit_bias": {"0": 100, "2": 100, "28": 60},
    "temperature": 1.5,
    "seed": 5,
    "n": 2,
}


@pytest.mark.parametrize("name", FORMS)
def test_nothing_else_that_is_asked_breaks_the_form(server: Any, name: str) -> None:
    fields, check = FORMS[name]
    whole = server.post(CHAT, json=body(CHAT, **fields, **HOSTILE)).json()["choices"]
    assert [choice["finish_reason"] for choice in whole] == ["stop", "stop"]
    for choice in whole:
        check(choice["message"]["content"])

    streamed = server.post(TEXT, json=body(TEXT, **fields, **HOSTILE, stream=True)).text
    assert streamed.endswith("data: [DONE]\n\n")
    texts = {0: "", 1: ""}
    for line in streamed.splitlines():
        for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
            texts[choice["index"]] += choice["text"]
    for text in texts.values():
        check(text)


def test_max_tokens_inside_a_form_is_length_and_a_beginning_of_it(server: Any) -> None:
    (choice,) = server.post(CHAT, json=body(CHAT, regex="(abc){50}", max_tokens=3)).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert ("abc" * 50).startswith(choice["message"]["content"])


def tag_of(content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "structural_tag", "format": {"type": "tag", "begin": "<f>", "content": content, "end": "</f>"}}


@pytest.mark.parametrize(
    ("fields", "param", "code", "said"),
    [
        ({"response_format": response_format({"properties": {"a": {"type": "strnig"}}})},
         "response_format", "invalid_schema", "(at /properties/a/type)"),
        ({"json_schema": {"$ref": "#/$defs/none"}}, "json_schema", "invalid_schema", "(at /$ref)"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "invalid_regex", "position 0"),
        ({"regex": "(?<=a)b"}, "regex", "invalid_regex", "look-behind"),
        ({"ebnf": "root ::= none"}, "ebnf", "invalid_grammar", "line 1"),
        ({"response_format": tag_of({"type": "json_schema", "json_schema": {"type": "strnig"}})},
         "response_format", "invalid_structural_tag", "(at /format/content/json_schema/type)"),
        ({"ebnf": 'root ::= "a"', "grammar_backend": "outlines"}, "ebnf", "unsupported", "outlines"),
        ({"regex": "a", "grammar_backend": "none"}, "regex", "unsupported", "'none'"),
        ({"regex": "a", "grammar_backend": "foo"}, "grammar_backend", "invalid_value", "there are: auto"),
        ({"regex": "a", "choice": ["a"]}, "choice", "conflicting_constraints", "'regex' and 'choice'"),
        ({"response_format": response_format(SCHEMA), "regex": "a"}, "regex", "conflicting_constraints", "one"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_refusal_is_a_status_and_names_field_place_and_code(
    server: Any, path: str, fields: dict[str, Any], param: str, code: str, said: str
) -> None:
    for stream in (False, True):
        response = server.post(path, json=body(path, **fields, stream=stream))
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
        assert said in error["message"]


async def test_every_row_of_a_batch_has_the_mask_of_its_own_request(server: Any) -> None:
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)

    async def ask(text: str, **options: Any) -> str:
        answer = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": text}], **options
        )
        return str(answer.choices[0].message.content)

    plain: dict[str, Any] = {"text": "Write two sentences about rain.", "temperature": 0, "max_tokens": 24}
    forms = [FORMS[name] for name in ("json_schema", "choice", "structural_tag", "regex")]

    async def constrained(index: int) -> None:
        fields, check = forms[index % len(forms)]
        known = {name: value for name, value in fields.items() if name == "response_format"}
        other = {name: value for name, value in fields.items() if name != "response_format"}
        check(await ask("Yes or no?", temperature=1, max_tokens=120, seed=index, extra_body=other, **known))

    async def joins_late(index: int) -> None:
        await asyncio.sleep(0.1 * index)
        await constrained(index)

    async with client:
        alone = await ask(**plain)
        results = await asyncio.gather(ask(**plain), *map(joins_late, range(8)), ask(**plain))
    assert results[0] == results[-1] == alone

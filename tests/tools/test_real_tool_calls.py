"""Tool calls of the real model, through OpenAI's own client."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema
import openai
import pytest
from pydantic import BaseModel, ConfigDict

sys.path.insert(0, str(Path(__file__).parent))
from answers import events, from_chunks, from_message


class Weather(BaseModel):
    """Weather of a city."""

    model_config = ConfigDict(extra="forbid")
    city: str
    days: int


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    is_good: bool


ASK = [{"role": "user", "content": "What is the weather in Paris in the next 3 days?"}]


@pytest.fixture
def client(real_server):
    with openai.OpenAI(base_url=f"{real_server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_parse_reads_pydantic_models_and_tools(client):
    tool = openai.pydantic_function_tool(Weather, name="weather")
    answer = client.chat.completions.parse(
        model="m", messages=ASK, tools=[tool], tool_choice="required", parallel_tool_calls=False, temperature=0
    )
    call = answer.choices[0].message.tool_calls[0]
    assert isinstance(call.function.parsed_arguments, Weather)
    assert answer.choices[0].finish_reason == "tool_calls"
    answer = client.chat.completions.parse(model="m", messages=ASK, response_format=Verdict, temperature=0)
    assert isinstance(answer.choices[0].message.parsed, Verdict)


def test_the_stream_helper_gathers_the_same_call(client):
    tool = openai.pydantic_function_tool(Weather, name="weather")
    options = {
        "model": "m",
        "messages": ASK,
        "tools": [tool],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "temperature": 0,
    }
    whole = client.chat.completions.parse(**options).choices[0].message.tool_calls[0]
    fragments, done = [], []
    with client.chat.completions.stream(**options) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                fragments.append(event.arguments_delta)
            if event.type == "tool_calls.function.arguments.done":
                done.append(event)
        final = stream.get_final_completion()
    assert len([fragment for fragment in fragments if fragment]) > 1
    assert "".join(fragments) == whole.function.arguments
    assert [(event.name, event.parsed_arguments) for event in done] == [("weather", whole.function.parsed_arguments)]
    assert final.choices[0].message.tool_calls[0].function.parsed_arguments == whole.function.parsed_arguments


def test_the_stream_helper_parses_an_answer_into_a_pydantic_model(client):
    fragments = []
    with client.chat.completions.stream(
        model="m", messages=ASK, response_format=Verdict, temperature=0, stream_options={"include_usage": True}
    ) as stream:
        for event in stream:
            if event.type == "content.delta":
                fragments.append(event.delta)
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Verdict)
    assert Verdict.model_validate_json("".join(fragments)) == final.choices[0].message.parsed
    assert final.usage.completion_tokens > 0


def test_twenty_sampled_calls_are_valid(real_server):
    schema = {
        "type": "object",
        "properties": {
            "title": {"type": "string", "minLength": 1, "maxLength": 12},
            "priority": {"enum": ["low", "high"]},
            "hours": {"type": "integer", "minimum": 1, "maximum": 8},
        },
        "required": ["title", "priority", "hours"],
    }
    tool = {"type": "function", "function": {"name": "add_task", "parameters": schema}}
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Remind me to water the plants."}],
        "tools": [tool],
        "tool_choice": {"type": "function", "function": {"name": "add_task"}},
        "temperature": 1,
        "n": 20,
        "max_tokens": 200,
    }
    choices = real_server.chat(body).json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["tool_calls"] * 20
    for choice in choices:
        (call,) = choice["message"]["tool_calls"]
        jsonschema.validate(json.loads(call["function"]["arguments"]), schema)


def test_many_tools_can_be_offered_at_once(real_server):
    tools = [{"type": "function", "function": {"name": f"t{i}", "parameters": {"type": "object"}}} for i in range(30)]
    body = {"model": "m", "messages": ASK, "tools": tools, "tool_choice": "required", "max_tokens": 24}
    answer = real_server.chat({**body, "parallel_tool_calls": False})
    assert answer.status_code == 200, answer.text
    said = from_message(answer.json()["choices"][0])
    assert said["calls"][0][1] in {tool["function"]["name"] for tool in tools}


def test_a_tool_without_parameters_is_called_with_an_empty_object(real_server):
    tool = {"type": "function", "function": {"name": "lamp_on", "parameters": {"type": "object", "properties": {}}}}
    body = {"model": "m", "messages": [{"role": "user", "content": "Turn the lamp on."}], "tools": [tool]}
    body |= {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 0, "max_tokens": 60}
    said = from_message(real_server.chat(body).json()["choices"][0])
    assert said["calls"] == [("function", "lamp_on", "{}")]
    assert from_chunks(events(real_server.chat({**body, "stream": True}).text)) == said


def test_a_call_cut_off_by_max_tokens_says_so_at_every_length(real_server):
    schema = {"type": "object", "properties": {"content": {"type": "string"}}, "required": ["content"]}
    tool = {"type": "function", "function": {"name": "save", "parameters": schema}}
    body = {"model": "m", "messages": ASK, "tools": [tool], "tool_choice": "required", "temperature": 0}
    for max_tokens in range(1, 24, 3):
        said = from_message(real_server.chat({**body, "max_tokens": max_tokens}).json()["choices"][0])
        assert said["finish_reason"] == "length"
        chunks = events(real_server.chat({**body, "max_tokens": max_tokens, "stream": True}).text)
        assert from_chunks(chunks) == said


def test_a_stop_string_ends_words_beside_tools_and_loses_none(real_server):
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Write: I will now < and then the word END."}],
        "tools": [tool],
        "stop": ["word"],
        "temperature": 0,
        "max_tokens": 60,
    }
    answer = real_server.chat(body).json()["choices"][0]
    assert answer["stop_reason"] == "word"
    said = from_message(answer)
    assert said["content"].endswith("the ")
    assert from_chunks(events(real_server.chat({**body, "stream": True}).text)) == said


def test_a_stop_string_does_not_cut_a_call_in_two(real_server):
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome END"]}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "go", "parameters": schema}}
    body = {"model": "m", "messages": ASK, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    said = from_message(real_server.chat({**body, "stop": ["END", "}"]}).json()["choices"][0])
    assert json.loads(said["calls"][0][2]) == {"city": "Rome END"}
    assert said["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("schema", "word"),
    [({"properties": {"a": {"type": "strnig"}}}, "strnig"), ({"properties": {"a": {"$ref": "#/nowhere"}}}, "nowhere")],
)
def test_a_tool_whose_arguments_cannot_be_constrained_is_a_400(real_server, schema, word):
    tools = [
        {"type": "function", "function": {"name": "fine", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "broken", "parameters": {"type": "object", **schema}}},
    ]
    answer = real_server.chat({"model": "m", "messages": ASK, "tools": tools, "tool_choice": "required"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "tools[1].function.parameters"
    assert error["message"].startswith("Tool 'broken': ")
    assert "(at tools[1].function.parameters/properties/a/" in error["message"]
    assert word in error["message"]


@pytest.mark.parametrize(("syntax", "definition"), [("regex", "[a-c"), ("lark", "start: (NOWHERE"), ("lark", "x: /a/")])
def test_a_custom_tools_broken_grammar_is_a_400_that_names_it(real_server, syntax, definition):
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    tools = [
        {"type": "function", "function": {"name": "fine", "parameters": {"type": "object"}}},
        {"type": "custom", "custom": {"name": "broken", "format": form}},
    ]
    answer = real_server.chat({"model": "m", "messages": ASK, "tools": tools, "tool_choice": "required"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "tools[1].custom.format.grammar.definition"
    assert error["message"].startswith("Tool 'broken': ")


@pytest.mark.parametrize("syntax", ["regex", "lark"])
def test_a_custom_tools_grammar_holds(real_server, syntax):
    definition = {"regex": "[a-c]{3}[0-9]", "lark": "start: LETTERS DIGIT\nLETTERS: /[a-c]{3}/\nDIGIT: /[0-9]/"}[syntax]
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    tool = {"type": "custom", "custom": {"name": "code", "format": form}}
    body = {
        "model": "m",
        "messages": ASK,
        "tools": [tool],
        "tool_choice": {"type": "custom", "custom": {"name": "code"}},
    }
    (call,) = from_message(real_server.chat(body).json()["choices"][0])["calls"]
    assert call[:2] == ("custom", "code")
    assert len(call[2]) == 4
    assert set(call[2][:3]) <= set("abc")
    assert call[2][3].isdigit()

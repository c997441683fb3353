"""Every field of the openai package's request types works, is refused by name, or stands in the published list."""

from __future__ import annotations

import typing

import openai.types.chat as chat_types
import openai.types.chat.completion_create_params as chat_params
import openai.types.completion_create_params as text_params
import pytest

from server.chat.protocol import ChatCompletionRequest, ChatMessage, ContentPart
from server.completions.protocol import CompletionRequest
from server.ignored_fields import IGNORED_FIELDS, IGNORED_NESTED_FIELDS, REFUSED_FIELDS
from server.sampling_request import StreamOptions

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def fields_of(typed_dict) -> set[str]:
    return set(typing.get_type_hints(typed_dict))


CHAT_FIELDS = sorted(
    fields_of(chat_params.CompletionCreateParamsNonStreaming) | fields_of(chat_params.CompletionCreateParamsStreaming)
)
TEXT_FIELDS = sorted(
    fields_of(text_params.CompletionCreateParamsNonStreaming) | fields_of(text_params.CompletionCreateParamsStreaming)
)


@pytest.mark.parametrize("name", CHAT_FIELDS)
def test_every_chat_field_has_its_place(name):
    places = [name in ChatCompletionRequest.model_fields, name in IGNORED_FIELDS, name in REFUSED_FIELDS]
    assert sum(places) == 1


@pytest.mark.parametrize("name", TEXT_FIELDS)
def test_every_text_field_has_its_place(name):
    places = [name in CompletionRequest.model_fields, name in IGNORED_FIELDS, name in REFUSED_FIELDS]
    assert sum(places) == 1


def test_every_stream_option_has_its_place():
    assert fields_of(chat_types.ChatCompletionStreamOptionsParam) <= set(StreamOptions.model_fields)


@pytest.mark.parametrize("name", [name for name in dir(chat_types) if name.endswith("MessageParam")])
def test_every_message_field_has_its_place(name):
    kind = getattr(chat_types, name)
    for member in typing.get_args(kind) or (kind,):
        assert fields_of(member) <= set(ChatMessage.model_fields)


@pytest.mark.parametrize("name", [name for name in dir(chat_types) if name.startswith("ChatCompletionContentPart")])
def test_every_content_part_field_has_its_place(name):
    kind = getattr(chat_types, name)
    if not name.endswith("Param"):
        kind = dict
    for member in typing.get_args(kind) or (kind,):
        if member is not dict:
            assert fields_of(member) <= set(ContentPart.model_fields)


@pytest.mark.parametrize("name", sorted(REFUSED_FIELDS))
def test_a_refused_field_is_a_400_that_names_it(shared_server, name):
    answer = shared_server.post(CHAT, {"messages": MESSAGES, name: 1})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name
    assert name in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", sorted({*REFUSED_FIELDS, *IGNORED_FIELDS, *ChatCompletionRequest.model_fields}))
def test_null_means_left_out(shared_server, name):
    body = {"messages": MESSAGES, "max_tokens": 1, **({} if name == "messages" else {name: None})}
    assert shared_server.post(CHAT, body).status_code == 200


@pytest.mark.parametrize("name", sorted(IGNORED_FIELDS))
@pytest.mark.parametrize("value", ["x", {"a": 1}, 5])
def test_an_ignored_field_changes_nothing(server, name, value):
    if value != "x":
        return
    plain = server.post(CHAT, {"messages": MESSAGES, "max_tokens": 3}).json()["choices"]
    assert server.post(CHAT, {"messages": MESSAGES, "max_tokens": 3, name: value}).json()["choices"] == plain
    first, second = server.scheduler.requests()
    assert first.sampling == second.sampling
    assert first.prompt_token_ids == second.prompt_token_ids


def test_an_earlier_answer_can_be_sent_back_as_it_came(shared_server):
    message = shared_server.post(CHAT, {"messages": MESSAGES, "max_tokens": 2}).json()["choices"][0]["message"]
    history = [*MESSAGES, {**message, "annotations": [], "audio": None, "tool_calls": None, "function_call": None}]
    assert shared_server.post(CHAT, {"messages": [*history, *MESSAGES], "max_tokens": 2}).status_code == 200


def test_tools_that_may_not_be_called_are_no_hindrance(shared_server):
    body = {"messages": MESSAGES, "max_tokens": 1, "tools": [{"type": "function", "function": {"name": "f"}}]}
    assert shared_server.post(CHAT, {**body, "tool_choice": "none"}).status_code == 200


def test_nested_ignored_fields_are_accepted(shared_server):
    assert IGNORED_NESTED_FIELDS
    body = {
        "messages": [
            {"role": "assistant", "content": "a", "annotations": [{"type": "x"}]},
            {"role": "user", "content": [{"type": "text", "text": "a", "prompt_cache_breakpoint": {}}]},
        ],
        "max_tokens": 1,
        "stream": True,
        "stream_options": {"include_obfuscation": True},
    }
    assert shared_server.post(CHAT, body).status_code == 200


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_text_parts_are_joined_and_a_developer_speaks_as_system(server, role):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert server.post(CHAT, {"messages": [{"role": role, "content": parts}], "max_tokens": 1}).status_code == 200
    prompt = server.context.tokenizer.decode(server.scheduler.requests()[0].prompt_token_ids, skip_special_tokens=False)
    shown = "system" if role == "developer" else role
    assert prompt.startswith(f"<|im_start|>{shown}\na\nb<|im_end|>")


def test_calls_in_the_history_reach_the_template_parsed(make_server, assets):
    from dataclasses import replace

    source = "{% if tools %}{{ tools }}{% endif %}{% for m in messages %}{{ m | tojson }}{% endfor %}"
    server = make_server(with_assets=replace(assets, chat_template=source))
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "function", "name": "g", "content": None},
    ]
    assert server.post(CHAT, {"messages": messages, "max_tokens": 1}).status_code == 200
    prompt = server.context.tokenizer.decode(server.scheduler.requests()[0].prompt_token_ids)
    assert '"arguments": {"x": 1}' in prompt
    assert '"tool_call_id": "c1"' in prompt

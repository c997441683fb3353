"""Every field of the openai package's request types works, is refused by name, or stands in the published list."""

from __future__ import annotations

import typing

import openai.types.chat as chat_types
import openai.types.chat.completion_create_params as chat_params
import openai.types.completion_create_params as text_params
import pytest

from server.chat.protocol import ChatCompletionRequest, ChatMessage, ContentPart
from server.completions.protocol import CompletionRequest
from server.ignored_fields import IGNORED_FIELDS, IGNORED_NESTED_FIELDS, NEUTRAL_VALUES, REFUSED_FIELDS
from server.request.fields import StreamOptions

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
    answer = shared_server.post(CHAT, {"messages": MESSAGES, name: 2})
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


@pytest.mark.parametrize(("name", "value"), sorted(NEUTRAL_VALUES.items()))
def test_a_refused_field_that_asks_for_nothing_is_accepted(shared_server, name, value):
    assert shared_server.post(CHAT, {"messages": MESSAGES, "max_tokens": 1, name: value}).status_code == 200


def test_null_inside_an_object_means_left_out(shared_server):
    body = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "refusal": None}], "name": None}],
        "tools": [{"type": None, "function": {"name": "f", "strict": None, "description": None}}],
        "tool_choice": "none",
        "max_tokens": 1,
        "stream": True,
        "stream_options": {"include_usage": None},
    }
    assert shared_server.post(CHAT, body).status_code == 200
    answer = shared_server.post(CHAT, {**body, "stream_options": {"include_use": None}})
    assert answer.json()["error"]["code"] == "unknown_field"


@pytest.mark.parametrize(
    ("fields", "param", "hint"),
    [
        ({"messages": [{"role": "assistant", "content": "a", "prefix": True}]}, "messages[0].prefix", "continue_final"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document_url", "document_url": "x"}]}]},
            "messages[0].content[0].document_url",
            "only text",
        ),
        ({"response_format": {"type": "json_object", "value": {}}}, "response_format.value", "json_schema"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools[0].name", '"function": {"name"'),
    ],
)
def test_a_field_of_other_servers_is_refused_with_what_to_do_instead(shared_server, fields, param, hint):
    error = shared_server.post(CHAT, {"messages": MESSAGES, **fields}).json()["error"]
    assert error["param"] == param
    assert hint in error["message"]


@pytest.mark.parametrize(
    "message",
    [
        {"content": [], "role": "assistant"},
        {"tool_calls": [], "role": "assistant"},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "null"}}]},
        {"role": "assistant", "reasoning": "so"},
    ],
)
def test_history_as_agent_frameworks_write_it_is_accepted(shared_server, message):
    body = {"messages": [*MESSAGES, message, *MESSAGES], "max_tokens": 1}
    assert shared_server.post(CHAT, body).status_code == 200


def test_agents_may_number_the_calls_of_each_turn_anew(shared_server):
    call = {"id": "call_0", "function": {"name": "f", "arguments": "{}"}}
    turn = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "content": "1"},
    ]
    body = {"messages": [*MESSAGES, *turn, *turn], "max_tokens": 1}
    assert shared_server.post(CHAT, body).status_code == 200
    twice = [*MESSAGES, {"role": "assistant", "tool_calls": [call, call]}]
    assert shared_server.post(CHAT, {"messages": twice}).json()["error"]["param"] == "messages[1].tool_calls[1].id"


def test_top_p_of_zero_is_greedy(server):
    assert server.post(CHAT, {"messages": MESSAGES, "top_p": 0, "temperature": 1, "max_tokens": 2}).status_code == 200
    sampling = server.scheduler.requests()[0].sampling
    assert (sampling.temperature, sampling.top_p) == (0.0, 1.0)


HOPELESS = [
    '{"v": 1e999}',
    '{"v": -1e999}',
    '{"v": "\\ud800"}',
    '{"\\udfff": 1}',
    '{"v": ' + "[" * 250 + "]" * 250 + "}",
]


@pytest.mark.parametrize("arguments", HOPELESS)
@pytest.mark.parametrize("path", [CHAT, "/apply_template"])
@pytest.mark.parametrize("spelling", ["tool_calls", "function_call"])
def test_arguments_that_no_template_could_write_are_a_400(shared_server, path, spelling, arguments):
    function = {"name": "f", "arguments": arguments}
    said = {"function_call": function, "tool_calls": [{"id": "c", "function": function}]}[spelling]
    answer = shared_server.post(path, {"messages": [*MESSAGES, {"role": "assistant", spelling: said}]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].endswith("arguments")


@pytest.mark.parametrize("arguments", HOPELESS)
def test_calls_that_are_no_json_are_words(shared_server, arguments):
    text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    body = {"text": text, "tools": [{"function": {"name": "f"}}], "tool_call_parser": "hermes"}
    answer = shared_server.post("/parse_tool_calls", body)
    assert answer.status_code == 200
    assert answer.json() == {"normal_text": text, "tool_calls": []}


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
            {"role": "assistant", "content": "a", "annotations": [{"type": "x"}], "parsed": {"a": 1}},
            {"role": "assistant", "content": "a", "reasoning": "so", "reasoning_details": [{}], "cache_control": {}},
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "c", "index": 0, "function": {"name": "f", "arguments": "{}", "parsed_arguments": {}}}
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "x"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a", "prompt_cache_breakpoint": {}, "cache_control": {}}],
            },
        ],
        "tools": [{"function": {"name": "f"}, "cache_control": {"type": "ephemeral"}}],
        "tool_choice": "none",
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

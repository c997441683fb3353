"""Tools and thinking over HTTP: what is sent to the scheduler, how answers come back, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from tokenizers import Tokenizer as HuggingFaceTokenizer

from scheduler.messages import ErrorInfo

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
TEXT = 'Sure.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
QWEN_LIKE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def says(server, text, *, cut_to=None):
    """Make the fake write ``text``."""
    ids = server.context.tokenizer.encode_plain(text)[:cut_to]
    server.behaviour.tokens_of = lambda request, choice: ids


def chunks_of(server, body):
    lines = server.post(CHAT, {**body, "stream": True}).text.split("\n\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_words_and_a_call_come_back_apart(server):
    says(server, TEXT)
    body = {"messages": MESSAGES, "tools": [WEATHER]}
    choice = server.post(CHAT, body).json()["choices"][0]
    assert choice["message"]["content"] == "Sure."
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    assert call["id"].startswith("call_")
    chunks = chunks_of(server, body)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["function"] == {"name": "get_weather", "arguments": ""}
    assert len(calls) > 3
    assert "".join(call["function"]["arguments"] for call in calls) == '{"city": "Oslo"}'
    assert "".join(delta.get("content") or "" for delta in deltas) == "Sure."
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_every_cut_of_a_call_ends_with_length_and_alike_both_ways(server):
    ids = server.context.tokenizer.encode_plain(TEXT)
    server.behaviour.tokens_of = lambda request, choice: ids
    for max_tokens in range(1, len(ids)):
        body = {"messages": MESSAGES, "tools": [WEATHER], "max_tokens": max_tokens}
        choice = server.post(CHAT, body).json()["choices"][0]
        assert choice["finish_reason"] == "length"
        chunks = chunks_of(server, body)
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert "".join(delta.get("content") or "" for delta in deltas) == (choice["message"]["content"] or "")
        calls = [delta["tool_calls"][0]["function"]["arguments"] for delta in deltas if "tool_calls" in delta]
        whole = choice["message"].get("tool_calls")
        assert "".join(calls) == (whole[0]["function"]["arguments"] if whole else "")


def test_text_held_back_for_a_call_is_shown_at_the_end(server):
    says(server, "I will now <tool_c")
    body = {"messages": MESSAGES, "tools": [WEATHER]}
    assert server.post(CHAT, body).json()["choices"][0]["message"]["content"] == "I will now <tool_c"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks_of(server, body)]
    assert "".join(delta.get("content") or "" for delta in deltas) == "I will now <tool_c"


def test_functions_are_answered_with_function_call(server):
    says(server, TEXT)
    body = {"messages": MESSAGES, "functions": [WEATHER["function"]], "function_call": {"name": "get_weather"}}
    choice = server.post(CHAT, body).json()["choices"][0]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks_of(server, body)]
    pieces = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert pieces[0]["name"] == "get_weather"
    assert "".join(piece["arguments"] for piece in pieces) == '{"city": "Oslo"}'


@pytest.mark.parametrize(
    ("choice", "names", "is_free"),
    [
        (None, ["get_weather", "get_time"], True),
        ("auto", ["get_weather", "get_time"], True),
        ("required", ["get_weather", "get_time"], False),
        ({"type": "function", "function": {"name": "get_time"}}, ["get_time"], False),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "get_weather"}}],
                },
            },
            ["get_weather"],
            True,
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "get_weather"}}],
                },
            },
            ["get_weather"],
            False,
        ),
    ],
)
def test_a_choice_becomes_a_grammar(server, choice, names, is_free):
    body = {"messages": MESSAGES, "tools": [WEATHER, TIME], "tool_choice": choice, "max_tokens": 1}
    assert server.post(CHAT, body).status_code == 200
    sent = server.scheduler.requests()[0]
    form = sent.grammar.value
    assert [name for name in ("get_weather", "get_time") if f'{{\\"name\\": \\"{name}\\"' in form] == names
    assert is_free == ('"excludes":["<tool_call>"]' in form) == sent.stops_between_forms
    assert sent.grammar_field == "tools"


def test_with_none_no_tool_is_shown_or_called(server):
    says(server, TEXT)
    body = {"messages": MESSAGES, "tools": [WEATHER], "tool_choice": "none"}
    choice = server.post(CHAT, body).json()["choices"][0]
    assert choice["message"]["content"] == TEXT
    sent = server.scheduler.requests()[0]
    assert sent.grammar is None
    assert "get_weather" not in server.context.tokenizer.decode(sent.prompt_token_ids)


def test_a_template_without_tools_is_told_of_them_in_words(server):
    call = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    answer = server.post("/apply_template", {"messages": messages, "tools": [WEATHER, TIME]})
    prompt = answer.json()["prompt"]
    assert prompt.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert '"name": "get_weather"' in prompt
    assert '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>' in prompt
    assert "<tool_response>\nnoon\n</tool_response>" in prompt
    assert answer.json()["count"] == len(answer.json()["token_ids"])
    assert server.scheduler.requests() == []


TOO_MANY = [{"type": "function", "function": {"name": f"t{i}"}} for i in range(10_000)]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools[1]"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "search"}]}, "tools[0].type"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": TOO_MANY}, "tools"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters.type",
        ),
        ({"tools": [WEATHER], "tool_choice": "get_weather"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "custom", "custom": {"name": "get_weather"}}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"tools": [WEATHER], "tool_choice": {"function": {"name": "get_weather"}}}, "tool_choice.type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"functions": [{"name": "f"}], "tools": [WEATHER]}, "tools"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call"),
        ({"tools": [WEATHER], "tool_choice": "required", "regex": "a"}, "regex"),
        (
            {"tools": [{"type": "custom", "custom": {"name": "c", "format": {"type": "grammar"}}}]},
            "tools[0].custom.format.grammar",
        ),
        ({"messages": [*MESSAGES, {"role": "tool", "tool_call_id": "c1", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [*MESSAGES, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"thinking_budget": -1}, "thinking_budget"),
        ({"thinking_budget": 1, "thinking_token_budget": 2}, "thinking_token_budget"),
        ({"reasoning_effort": "lots"}, "reasoning_effort"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_input_is_named(shared_server, fields, param, stream):
    answer = shared_server.post(CHAT, {"messages": MESSAGES, "stream": stream, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("arguments", ['{"city": "Os', "[1]", "NaN", "{'a': 1}"])
def test_arguments_in_the_history_that_are_no_json_object_are_a_400(shared_server, arguments):
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": ""},
    ]
    answer = shared_server.post(CHAT, {"messages": messages, "tools": [WEATHER]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[1].tool_calls[0].function.arguments"


@pytest.fixture
def thinking_server(make_server, assets):
    return make_server(with_assets=replace(assets, chat_template=QWEN_LIKE))


def test_what_the_prompt_opens_is_known_to_the_scheduler(thinking_server):
    says(thinking_server, "Hm.\n</think>\n\nYes.")
    body = {"messages": MESSAGES, "thinking_budget": 9}
    message = thinking_server.post(CHAT, body).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")
    sent = thinking_server.scheduler.requests()[0]
    tokenizer = thinking_server.context.tokenizer
    assert tokenizer.decode(sent.prompt_token_ids).endswith("<think>\n")
    assert sent.reasoning.is_thinking
    assert sent.reasoning.budget == 9
    assert tokenizer.decode(list(sent.reasoning.think_end_ids)) == "</think>"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks_of(thinking_server, body)]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Hm."
    assert "".join(delta.get("content") or "" for delta in deltas) == "Yes."


@pytest.mark.parametrize("switch", [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}])
def test_thinking_switched_off_is_content_from_the_first_token(thinking_server, switch):
    says(thinking_server, '{"x": "y"}')
    body = {"messages": MESSAGES, "response_format": {"type": "json_object"}, **switch}
    message = thinking_server.post(CHAT, body).json()["choices"][0]["message"]
    assert message["content"] == '{"x": "y"}'
    assert "reasoning_content" not in message
    assert thinking_server.scheduler.requests()[0].reasoning is None


def test_without_an_end_marker_the_prompt_decides(make_server, assets):
    template = "{# <think> #}{% for m in messages %}{{ m.content }}{% endfor %}"
    server = make_server(with_assets=replace(assets, chat_template=template))
    says(server, "Good morning!")
    message = server.post(CHAT, {"messages": MESSAGES}).json()["choices"][0]["message"]
    assert message["content"] == "Good morning!"
    assert "reasoning_content" not in message


def test_no_special_token_is_shown_in_words_or_thinking(thinking_server):
    end = thinking_server.context.tokenizer.control_ids["<|im_end|>"]
    for text, options in (("Good morning!", {"reasoning_effort": "none"}), ("Hm.</think>Good morning!", {})):
        ids = [*thinking_server.context.tokenizer.encode_plain(text), end]
        thinking_server.behaviour.tokens_of = lambda request, choice, ids=ids: ids
        body = {"messages": MESSAGES, "tools": [WEATHER], **options}
        message = thinking_server.post(CHAT, body).json()["choices"][0]["message"]
        assert message["content"] == "Good morning!"
        assert message.get("reasoning_content") in (None, "Hm.")
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks_of(thinking_server, body)]
        assert "".join(delta.get("content") or "" for delta in deltas) == "Good morning!"


def test_a_refused_tool_is_named(server):
    server.behaviour.reject = ErrorInfo(
        status=400, message="unknown type (at tools[1].function.parameters/a)", param="tools[1].function.parameters"
    )
    error = server.post(CHAT, {"messages": MESSAGES, "tools": [WEATHER, TIME]}).json()["error"]
    assert error["message"] == "Tool 'get_time': unknown type (at tools[1].function.parameters/a)"


def test_what_a_user_writes_about_thinking_opens_nothing(make_server, assets):
    template = QWEN_LIKE.replace("enable_thinking", "other")
    server = make_server(with_assets=replace(assets, chat_template=template))
    says(server, "Fine.")
    body = {"messages": [{"role": "user", "content": "Write <think> for me"}]}
    assert server.post(CHAT, body).json()["choices"][0]["message"]["content"] == "Fine."
    assert not server.scheduler.requests()[0].reasoning.is_thinking


def test_calls_are_not_looked_for_in_thinking(thinking_server):
    says(thinking_server, f"{TEXT}\n</think>\n\n{TEXT}")
    body = {"messages": MESSAGES, "tools": [WEATHER]}
    message = thinking_server.post(CHAT, body).json()["choices"][0]["message"]
    assert message["reasoning_content"] == TEXT
    assert len(message["tool_calls"]) == 1


def test_log_probabilities_come_for_every_token_of_a_call(server):
    says(server, TEXT)
    body = {"messages": MESSAGES, "tools": [WEATHER], "logprobs": True}
    whole = server.post(CHAT, body).json()["choices"][0]["logprobs"]["content"]
    streamed = [
        entry
        for chunk in chunks_of(server, body)
        if chunk["choices"][0]["logprobs"]
        for entry in chunk["choices"][0]["logprobs"]["content"]
    ]
    assert streamed == whole
    assert "".join(entry["token"] for entry in whole) == TEXT


def test_harmony_is_read_from_its_special_tokens(make_server, assets, tmp_path):
    markers = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"]
    tokenizer = HuggingFaceTokenizer.from_file(str(assets.tokenizer_json))
    tokenizer.add_special_tokens(markers)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    template = (
        "{% if tools %}{{ tools | tojson }}{% endif %}{# <|channel|>analysis #}"
        "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant"
    )
    own = replace(assets, tokenizer_json=tmp_path / "tokenizer.json", chat_template=template)
    server = make_server(with_assets=own)
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        '<|constrain|>json<|message|>{"city": "Oslo"}<|call|>'
    )
    ids = server.context.tokenizer.encode_prompt(text, add_special_tokens=False)
    server.behaviour.tokens_of = lambda request, choice: ids
    body = {"messages": MESSAGES, "tools": [WEATHER]}
    choice = server.post(CHAT, body).json()["choices"][0]
    assert choice["message"]["reasoning_content"] == "Hm."
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks_of(server, body)]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Hm."
    assert not any(delta.get("content") for delta in deltas)
    sent = server.scheduler.requests()[-1]
    tokenizer = server.context.tokenizer
    named = set(re.findall(r'{"type":"token","token":(\d+)}', sent.grammar.value))
    assert named == {str(tokenizer.control_ids[one]) for one in markers if one not in ("<|return|>", "<|call|>")}
    assert tokenizer.decode(sent.prompt_token_ids, skip_special_tokens=False).endswith("<|start|>assistant")
    assert not sent.reasoning.is_thinking
    assert sent.reasoning.may_think_again
    assert tokenizer.decode(list(sent.reasoning.think_start_ids), skip_special_tokens=False) == text[:30]
    server.post(CHAT, {**body, "thinking_budget": 5})
    bounded = server.scheduler.requests()[-1].reasoning
    assert (bounded.budget, bounded.is_thinking, bounded.may_think_again) == (5, False, True)
    server.post(CHAT, {"messages": MESSAGES, "thinking_budget": 5})
    assert server.scheduler.requests()[-1].reasoning.is_thinking
    final = "<|channel|>final<|message|>Good morning!<|return|>"
    ids = server.context.tokenizer.encode_prompt(final, add_special_tokens=False)
    assert server.post(CHAT, {"messages": MESSAGES}).json()["choices"][0]["message"]["content"] == "Good morning!"


def test_calls_of_a_text_are_parsed_on_their_own(shared_server):
    path = "/parse_tool_calls"
    answer = shared_server.post(path, {"text": TEXT, "tools": [WEATHER]}).json()
    assert answer["normal_text"].strip() == "Sure."
    assert answer["tool_calls"][0]["function"]["name"] == "get_weather"
    python = {"text": "[get_time()]", "tools": [TIME], "tool_call_parser": "pythonic"}
    assert shared_server.post(path, python).json()["tool_calls"][0]["function"]["arguments"] == "{}"
    answer = shared_server.post(path, {"text": TEXT, "tools": [TIME]}).json()
    assert answer == {"normal_text": TEXT, "tool_calls": []}
    bad = shared_server.post(path, {"text": TEXT, "tools": [TIME], "tool_call_parser": "none of them"})
    assert bad.status_code == 400
    assert bad.json()["error"]["param"] == "tool_call_parser"


def test_thinking_of_a_text_is_separated_on_its_own(shared_server):
    path = "/separate_reasoning"
    body = {"text": "<think>Hm</think>Yes", "reasoning_parser": "deepseek-r1"}
    assert shared_server.post(path, body).json() == {"reasoning_text": "Hm", "text": "Yes"}
    body = {"text": "Hm", "reasoning_parser": "qwen3", "is_thinking": True}
    assert shared_server.post(path, body).json() == {"reasoning_text": "Hm", "text": ""}
    body = {"text": "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Yes"}
    answer = shared_server.post(path, {**body, "reasoning_parser": "gpt-oss"})
    assert answer.json() == {"reasoning_text": "Hm", "text": "Yes"}
    bad = shared_server.post(path, {"text": "x", "reasoning_parser": "none of them"})
    assert bad.status_code == 400

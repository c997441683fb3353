"""Thinking of the real model: a template opens it, a budget ends it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sysconfig
import time
from pathlib import Path

import httpx
import pytest

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if is_unsaid is defined %}"
    "{% elif enable_thinking is not defined or enable_thinking %}<think>\n"
    "{% else %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
ASK = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def http(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("reasoning")
    (folder / "thinking.jinja").write_text(TEMPLATE)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sysconfig.get_path("scripts")) / "scansion"), "serve", "--model", str(smollm2_gguf)]
    command += ["--port", str(port), "--num-threads", "1", "--dtype", "float32", "--kv-cache-tokens", "8192"]
    command += ["--chat-template", str(folder / "thinking.jinja")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False)
    try:
        deadline = time.monotonic() + 180
        while True:
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            try:
                if client.get("/health").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        yield client
    finally:
        client.close()
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def ask(http, **options):
    body = {"messages": ASK, "temperature": 0, "max_tokens": 40, **options}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    streamed = http.post(
        "/v1/chat/completions", json={**body, "stream": True, "stream_options": {"include_usage": True}}
    )
    chunks = [json.loads(line[6:]) for line in streamed.text.split("\n\n") if line.startswith("data: {")]
    for choice in whole["choices"]:
        deltas = [c["delta"] for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        message = choice["message"]
        for field in ("content", "reasoning_content"):
            assert "".join(delta.get(field) or "" for delta in deltas) == (message.get(field) or "")
    assert chunks[-1]["usage"]["completion_tokens_details"] == whole["usage"]["completion_tokens_details"]
    return whole


def test_a_budget_ends_thinking_and_the_answer_follows(http):
    whole = ask(http, thinking_budget=6, min_tokens=30)
    message = whole["choices"][0]["message"]
    assert message["reasoning_content"]
    assert message["content"]
    assert "</think>" not in message["reasoning_content"] + message["content"]
    details = whole["usage"]["completion_tokens_details"]
    assert 6 < details["reasoning_tokens"] < 6 + 8


def test_a_form_holds_behind_thinking(http):
    schema = {"type": "object", "properties": {"x": {"enum": ["yes", "no"]}}, "required": ["x"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    choices = ask(http, response_format=form, thinking_budget=5, n=2, temperature=1, seed=3)["choices"]
    for choice in choices:
        assert json.loads(choice["message"]["content"])["x"] in ("yes", "no")
        assert choice["message"]["reasoning_content"]


def test_thinking_switched_off_leaves_everything_in_the_content(http):
    schema = {"type": "object", "properties": {"x": {"enum": ["yes", "no"]}}, "required": ["x"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    for switch in ({"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
        whole = ask(http, response_format=form, **switch)
        assert json.loads(whole["choices"][0]["message"]["content"])["x"] in ("yes", "no")
        assert whole["choices"][0]["message"].get("reasoning_content") is None
        assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_a_call_follows_thinking(http):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    options = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "thinking_budget": 4}
    choice = ask(http, **options)["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert choice["message"]["reasoning_content"]
    assert choice["finish_reason"] == "tool_calls"


def test_stop_strings_leave_thinking_alone_unless_asked_not_to(http):
    thinking = ask(http, thinking_budget=12)["choices"][0]["message"]["reasoning_content"]
    stop = thinking.split()[1]
    assert ask(http, thinking_budget=12, stop=[stop])["choices"][0]["message"]["reasoning_content"] == thinking
    choice = ask(http, thinking_budget=12, stop=[stop], stop_in_reasoning=True)["choices"][0]
    assert choice["stop_reason"] == stop
    assert stop not in choice["message"]["reasoning_content"]


def test_without_an_end_what_the_prompt_opened_is_thinking(http):
    whole = ask(http, max_tokens=5)
    assert whole["choices"][0]["message"]["content"] is None
    assert whole["choices"][0]["message"]["reasoning_content"]
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5


def test_thinking_that_the_model_itself_opened_is_counted(http):
    options = {"chat_template_kwargs": {"is_unsaid": True}, "reasoning_effort": "none"}
    whole = ask(http, **options, regex="<think>[a-z]{6} [a-z]{6}</think>(yes|no)")
    message = whole["choices"][0]["message"]
    assert len(message["reasoning_content"]) == 13
    assert message["content"] in ("yes", "no")
    usage = whole["usage"]
    assert 6 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]
    whole = ask(http, **options, regex="(yes|no)")
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_thinking_may_stay_in_the_text_or_be_left_out(http):
    message = ask(http, thinking_budget=6, min_tokens=30)["choices"][0]["message"]
    inline = ask(http, thinking_budget=6, min_tokens=30, separate_reasoning=False)["choices"][0]["message"]
    assert "reasoning_content" not in inline
    assert message["reasoning_content"] in inline["content"]
    assert "</think>" in inline["content"]
    hidden = ask(http, thinking_budget=6, min_tokens=30, include_reasoning=False)["choices"][0]["message"]
    assert "reasoning_content" not in hidden
    assert hidden["content"] == message["content"]

"""The harmony format through the real server: special tokens of its own, random weights, every call in its form."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from answers import check_calls, events, from_chunks, from_message
from conftest import RealServer, write_random_model

from server.formats.harmony import HarmonyParser
from server.models.gguf_assets import assets_from_gguf

TEMPLATE = (
    "{% if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}{# <|channel|>analysis #}"
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant"
)
PARAMETERS = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 1, "maximum": 99}, "kind": {"enum": ["x", "y"]}},
    "anyOf": [{"required": ["size"]}, {"required": ["kind"]}],
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("book", "cancel_2")]
BODY: dict[str, Any] = {
    "model": "m", "messages": [{"role": "user", "content": "A table, please."}], "tools": TOOLS, "temperature": 1,
    "max_tokens": 60,
}  # fmt: skip


@pytest.fixture(scope="module")
def harmony_server(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory):
    """The default model's tokenizer, with some of its unused special tokens renamed."""
    folder = tmp_path_factory.mktemp("harmony")
    assets = assets_from_gguf(smollm2_gguf, name="m", chat_template=None, progress=lambda *_: None)
    tokenizer = json.loads(assets.tokenizer_json.read_text())
    renamed = {
        added["content"]: spelling
        for added, spelling in zip(tokenizer["added_tokens"][3:], HarmonyParser.shown_tokens, strict=False)
    }
    ids = {}
    for added in tokenizer["added_tokens"]:
        added["content"] = renamed.get(added["content"], added["content"])
        ids[added["content"]] = added["id"]
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {renamed.get(piece, piece): i for piece, i in vocabulary.items()}
    ends = [ids[one] for one in ("<|im_end|>", "<|return|>", "<|call|>")]
    model = write_random_model(folder, json.dumps(tokenizer), TEMPLATE, ends)
    server = RealServer(folder, model, "--load-format", "dummy")
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "cancel_2"}}])
def test_every_call_is_in_its_form(harmony_server, choice):
    body = {**BODY, "tool_choice": choice, "n": 8, "seed": 7}
    whole = harmony_server.chat(body)
    assert whole.status_code == 200, whole.text
    chunks = events(harmony_server.chat({**body, "stream": True}).text)
    num_calls = 0
    for one in whole.json()["choices"]:
        said = from_message(one)
        assert from_chunks(chunks, one["index"]) == said
        check_calls(said, TOOLS)
        num_calls += said["finish_reason"] == "tool_calls"
        assert len(said["calls"]) <= 1
        if choice != "auto":
            assert said["content"] == ""
    assert num_calls > 0


def test_words_stand_in_the_final_channel_and_have_the_form_that_was_asked_for(harmony_server):
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["yes", "no"]}}}
    answer = harmony_server.chat({**BODY, "response_format": form, "n": 8, "seed": 3}).json()
    for one in answer["choices"]:
        said = from_message(one)
        check_calls(said, TOOLS)
        assert said["calls"] or said["finish_reason"] == "length" or json.loads(said["content"]) in ("yes", "no")


@pytest.mark.parametrize("budget", [0, 3])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_budget_bounds_thinking_beside_tools(harmony_server, choice, budget):
    body = {**BODY, "tool_choice": choice, "n": 8, "seed": 5, "thinking_budget": budget}
    answer = harmony_server.chat(body)
    assert answer.status_code == 200, answer.text
    said = [from_message(one) for one in answer.json()["choices"]]
    for one in said:
        check_calls(one, TOOLS)
        assert budget or not one["reasoning"]
    assert any(one["calls"] for one in said)
    # Random weights end no thinking themselves: a part has the budget's tokens, and its markers, spelled in letters.
    most = budget + len("analysis") + 3 if budget else 0
    assert answer.json()["usage"]["completion_tokens_details"]["reasoning_tokens"] <= len(said) * most

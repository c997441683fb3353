"""Request bodies as real clients send them: answered, streamed and not, with the same result; or refused, rightly.

``CORPORA`` names a folder with ``requests/*.json``; without it the bodies of this file are run alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from answers import check_calls, events, from_chunks, from_message
from conftest import RealServer, write_random_model

from server.models.gguf_assets import assets_from_gguf

FUNCTION = {
    "type": "function",
    "function": {
        "name": "get_tide",
        "description": "Height of the tide",
        "parameters": {
            "type": "object",
            "properties": {"harbour": {"type": "string"}, "hour": {"type": "integer", "minimum": 0, "maximum": 23}},
            "required": ["harbour"],
        },
    },
}
ASK = [{"role": "user", "content": "How high is the tide at Dover at 9?"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "get_tide", "arguments": '{"harbour": "Dover"}'}}
OWN_BODIES: dict[str, dict[str, Any]] = {
    "own-auto": {"messages": ASK, "tools": [FUNCTION]},
    "own-required": {"messages": ASK, "tools": [FUNCTION], "tool_choice": "required"},
    "own-strict-n": {
        "messages": ASK,
        "n": 2,
        "tools": [{"type": "function", "function": {**FUNCTION["function"], "strict": True}}],
        "tool_choice": {"type": "function", "function": {"name": "get_tide"}},
    },
    "own-history": {
        "messages": [
            *ASK,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "3.2 m"},
        ],
        "tools": [FUNCTION],
    },
    "own-legacy": {"messages": ASK, "functions": [FUNCTION["function"]], "function_call": {"name": "get_tide"}},
    "own-custom": {
        "messages": ASK,
        "tools": [
            {
                "type": "custom",
                "custom": {
                    "name": "chart",
                    "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[A-Z]{2}[0-9]{2}"}},
                },
            }
        ],
        "tool_choice": {"type": "custom", "custom": {"name": "chart"}},
    },
    "own-form-and-tools": {
        "messages": ASK,
        "tools": [FUNCTION],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"metres": {"type": "number"}}}},
        },
    },
    "own-unknown-choice": {"messages": ASK, "tools": [FUNCTION], "tool_choice": "get_tide"},
    "own-result-without-call": {"messages": [*ASK, {"role": "tool", "tool_call_id": "c9", "content": "3"}]},
}

REFUSED = {
    "own-unknown-choice": ("tool_choice", "a tool is named by an object"),
    "own-result-without-call": ("messages[1].tool_call_id", "no call has that id"),
    "lcpp-01": ("response_format.schema", "a schema is no number"),
    "lcpp-03": ("tools[0].", "Anthropic's form of a tool: it has no type"),
    "lcpp-06": ("tools[0].", "Anthropic's form of a tool"),
    "lcpp-09": ("tools[0].", "Anthropic's form of a tool"),
    "lcpp-10": ("response_format", "a type is no number"),
    "lcpp-11": ("response_format.type", "there is no response format of that name"),
    "tgi-02": ("response_format", "the schema stands under 'value', TGI's own spelling"),
    "tgi-04": ("tool_choice", "TGI's own spelling: a tool is named by an object"),
    "tgi-07": ("response_format", "the schema stands under 'value', TGI's own spelling"),
    "vllm-00": ("response_format.json_schema", "a response format without its schema"),
    "vllm-01": ("structured_outputs", "the pattern is none"),
    "vllm-04": ("structured_outputs", "words are constrained and a call is required at once"),
    "vllm-06": ("structured_outputs", "a property's schema is a string"),
    "vllm-09": ("media_io_kwargs", "images are not served"),
}
"""(beginning of ``param``, why the 400 is right)"""


def bodies() -> dict[str, dict[str, Any]]:
    found = dict(OWN_BODIES)
    folder = os.environ.get("CORPORA")
    if folder:
        paths = sorted((Path(folder) / "requests").glob("*.json"))
        assert paths, f"CORPORA names {folder}, which has no requests"
        found.update((path.stem, json.loads(path.read_text())) for path in paths)
    return found


BODIES = bodies()


@pytest.fixture(scope="module")
def random_server(tmp_path_factory: pytest.TempPathFactory, smollm2_gguf: Path) -> Iterator[RealServer]:
    """Prompts of real clients are long, and what is said to them matters less than that it is said in form."""
    folder = tmp_path_factory.mktemp("bodies")
    assets = assets_from_gguf(smollm2_gguf, name="m", chat_template=None, progress=lambda *_: None)
    model = write_random_model(
        folder, assets.tokenizer_json.read_text(), assets.chat_template or "", assets.eos_token_ids
    )
    server = RealServer(folder, model, "--load-format", "dummy")
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


def prepared(body: dict[str, Any]) -> dict[str, Any]:
    """For the served model, greedy, and short; nothing else is changed."""
    body = {key: value for key, value in body.items() if key not in ("stream", "stream_options", "top_p")}
    limit = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    return {**body, "model": "m", "temperature": 0, limit: min(body.get(limit) or 48, 48)}


@pytest.mark.parametrize("name", sorted(BODIES))
def test_a_body_is_answered_alike_both_ways_or_rightly_refused(request, name):
    server = request.getfixturevalue("real_server" if name in OWN_BODIES else "random_server")
    body = prepared(BODIES[name])
    whole, streamed = server.chat(body), server.chat({**body, "stream": True})
    assert whole.status_code == streamed.status_code
    if name in REFUSED:
        assert whole.status_code == 400, whole.text
        assert whole.json()["error"]["param"].startswith(REFUSED[name][0])
        assert whole.json()["error"]["message"] == streamed.json()["error"]["message"]
        return
    assert whole.status_code == 200, whole.text
    chunks = events(streamed.text)
    for choice in whole.json()["choices"]:
        said = from_message(choice)
        assert from_chunks(chunks, choice["index"]) == said
        check_calls(said, body.get("tools") or [])
        check_form(body, said)


def check_form(body: dict[str, Any], said: dict[str, Any]) -> None:
    form = body.get("response_format") or {}
    if said["finish_reason"] != "stop" or said["calls"] or form.get("type") not in ("json_object", "json_schema"):
        return
    value = json.loads(said["content"])
    schema = (form.get("json_schema") or {}).get("schema") or form.get("schema")
    if schema is not None:
        jsonschema.validate(value, schema)


def test_every_refusal_has_a_body_when_the_corpora_are_there():
    if os.environ.get("CORPORA"):
        assert set(REFUSED) <= set(BODIES)
    assert set(REFUSED) & set(OWN_BODIES)

"""Tools in chat templates that packages ship: the format that is read from one is the one its history is written in."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from transformers.models.llama4.processing_llama4 import chat_template as llama4_template

from server.answer.events import collect
from server.formats.answer_format import needs_words
from server.formats.registry import recognise
from server.models.assets import ModelAssets
from server.text.chat_template import ChatTemplate
from server.text.protected_text import ProtectedText
from server.tools.definitions import OfferedTool, ToolRequest
from server.tools.prompt import template_tools

TEMPLATES = {"llama3_json": llama4_template}
"""By the format they ask for. Of the packages that the server needs, transformers alone ships one that knows tools."""
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOL = OfferedTool(name="get_weather", description="Weather of a city", parameters=SCHEMA)
ARGUMENTS = {"city": 'San "Juan"', "days": 3}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
USER = {"role": "user", "content": "How warm is it?"}


def template_of(source: str, tmp_path: Any) -> ChatTemplate:
    assets = ModelAssets(
        name="m", weights_path=tmp_path, tokenizer_json=tmp_path, chat_template=source, bos_token="<s>",
        eos_token="</s>", eos_token_ids=(2,), add_bos=False, context_length=4096, generation_defaults={}, created=0,
    )  # fmt: skip
    return ChatTemplate(assets, ProtectedText({}), timeout=5, max_chars=100_000)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_a_templates_own_history_is_read_back(name, tmp_path):
    source = TEMPLATES[name]
    assert not needs_words(source)
    parser_class = recognise(source)
    assert parser_class.name == name
    template = template_of(source, tmp_path)
    request = ToolRequest(
        offered=(TOOL,), callable=(TOOL,), demand="auto", is_parallel=True, is_named=False, is_legacy=False
    )
    options: dict[str, Any] = {"tools": template_tools(request)}
    prompt = template.render([USER], **options)
    assert '"name": "get_weather"' in prompt
    assert json.dumps("Weather of a city") in prompt
    history = [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    whole = template.render(history, add_generation_prompt=False, **options)
    assert whole.startswith(prompt)
    # Special tokens are no text of an answer.
    answer = re.sub(r"<\|\w+\|>", "", whole[len(prompt) :])
    for is_constrained in (True, False):
        parser = parser_class({"get_weather": SCHEMA}, is_constrained=is_constrained)
        (call,) = collect([*parser.add(answer), *parser.finish()]).calls
        assert (call.name, json.loads(call.arguments), call.is_complete) == ("get_weather", ARGUMENTS, True)
    result = {"role": "tool", "tool_call_id": "c1", "name": "get_weather", "content": "18 degrees"}
    assert "18 degrees" in template.render([*history, result], **options)

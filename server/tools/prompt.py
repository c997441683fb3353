"""How tools reach the model's prompt."""

from __future__ import annotations

from importlib import resources
from typing import Any

from server.text.chat_template import render_text
from server.tools.definitions import OfferedTool, ToolRequest
from server.tools.json_text import dump


def template_tools(request: ToolRequest) -> list[dict[str, Any]]:
    """``tools`` for the chat template: functions all of them, since templates know nothing else."""
    return [{"type": "function", "function": _function(tool)} for tool in request.offered]


def messages_with_tools(messages: list[dict[str, Any]], request: ToolRequest | None) -> list[dict[str, Any]]:
    """Messages for a template that knows no tools: the tools in the system message, calls and results as words.

    The words are those of ``tool_block.jinja`` and of the format ``hermes``.
    """
    plain = [_as_words(message) for message in messages]
    if request is None:
        return plain
    has_system = plain[0]["role"] in ("system", "developer")
    block = render_text(
        resources.files("server.tools").joinpath("tool_block.jinja").read_text(encoding="utf-8"),
        {
            "system": plain[0]["content"] if has_system else "",
            "tools": [_function(tool) for tool in request.offered],
            "must_call": request.demand == "required",
        },
    )
    system = {**(plain[0] if has_system else {"role": "system"}), "content": block}
    return [system, *plain[has_system:]]


def _function(tool: OfferedTool) -> dict[str, Any]:
    description = tool.description
    if tool.is_custom:
        how = f'Call it in this way: <custom_tool_call name="{tool.name}">\ninput\n</custom_tool_call>'
        description = f"{description}\n{how}" if description else how
    return {"name": tool.name, "description": description, "parameters": tool.parameters}


def _as_words(message: dict[str, Any]) -> dict[str, Any]:
    role = message["role"]
    if role in ("tool", "function"):
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [message["content"]] if message["content"] else []
    for call in calls:
        texts.append(_call_as_words(call))
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**kept, "content": "\n".join(texts)}


def _call_as_words(call: dict[str, Any]) -> str:
    function = call["function"]
    if call.get("is_custom"):
        return f'<custom_tool_call name="{function["name"]}">\n{function["arguments"]["input"]}\n</custom_tool_call>'
    body = f'{{"name": {dump(function["name"])}, "arguments": {dump(function["arguments"])}}}'
    return f"<tool_call>\n{body}\n</tool_call>"

"""From the messages of a request to what a chat template takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from server.chat.protocol import ChatMessage, ContentPart, ToolCall
from server.errors import BadRequestError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def template_messages(messages: Sequence[ChatMessage], *, knows_developer: bool) -> list[dict[str, Any]]:
    """Messages as dicts of plain data; text parts are joined with a line break, as vLLM joins them.

    Parameters
    ----------
    knows_developer
        Whether the template tells ``developer`` from ``system``; otherwise a developer message becomes a system one.

    Raises
    ------
    BadRequestError
        Names the message and the field that is wrong or not served.
    """
    return [_message(message, f"messages[{i}]", knows_developer) for i, message in enumerate(messages)]


def _message(message: ChatMessage, path: str, knows_developer: bool) -> dict[str, Any]:
    role = message.role
    if role not in ROLES:
        raise BadRequestError(
            f"Invalid value for '{path}.role': {role[:100]!r}. The roles are {', '.join(ROLES)}.",
            param=f"{path}.role",
            code="invalid_value",
        )
    _refuse_misplaced(message, path)
    plain: dict[str, Any] = {
        "role": "system" if role == "developer" and not knows_developer else role,
        "content": _content(message, path),
    }
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_calls:
        plain["tool_calls"] = [_tool_call(call, f"{path}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)]
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if message.reasoning_content is not None:
        plain["reasoning_content"] = message.reasoning_content
    return plain


def _refuse_misplaced(message: ChatMessage, path: str) -> None:
    for field in ("audio", "function_call"):
        if getattr(message, field) is not None:
            raise BadRequestError(f"'{path}.{field}' is not served.", param=f"{path}.{field}", code="unsupported")
    if message.role != "assistant":
        for field in ("refusal", "tool_calls", "reasoning_content"):
            if getattr(message, field) is not None:
                raise BadRequestError(
                    f"'{path}.{field}' belongs to the role 'assistant', not '{message.role}'.", param=f"{path}.{field}"
                )
    if message.role == "tool" and message.tool_call_id is None:
        raise BadRequestError(f"The field '{path}.tool_call_id' is required.", param=f"{path}.tool_call_id")
    if message.role != "tool" and message.tool_call_id is not None:
        raise BadRequestError(
            f"'{path}.tool_call_id' belongs to the role 'tool', not '{message.role}'.", param=f"{path}.tool_call_id"
        )
    if message.role == "function" and message.name is None:
        raise BadRequestError(f"The field '{path}.name' is required.", param=f"{path}.name")


def _content(message: ChatMessage, path: str) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        if message.role == "function" or (message.role == "assistant" and (message.tool_calls or message.refusal)):
            return message.refusal or ""
        raise BadRequestError(f"The field '{path}.content' is required.", param=f"{path}.content", code="missing_field")
    if not content:
        raise BadRequestError(f"'{path}.content' has no parts.", param=f"{path}.content")
    return "\n".join(_part(part, f"{path}.content[{i}]", message.role) for i, part in enumerate(content))


def _part(part: ContentPart, path: str, role: str) -> str:
    if part.type == "text" or (part.type == "refusal" and role == "assistant"):
        text = part.text if part.type == "text" else part.refusal
        if text is None:
            raise BadRequestError(f"The field '{path}.{part.type}' is required.", param=f"{path}.{part.type}")
        return text
    raise BadRequestError(
        f"'{path}.type' is {part.type[:100]!r}; only text is served.", param=f"{path}.type", code="unsupported"
    )


def _tool_call(call: ToolCall, path: str) -> dict[str, Any]:
    """Templates write arguments out themselves, so they take them parsed."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise BadRequestError(
            f"'{path}.function.arguments' is not valid JSON: {str(error)[:200]}.", param=f"{path}.function.arguments"
        ) from error
    if not isinstance(arguments, dict):
        raise BadRequestError(
            f"'{path}.function.arguments' must hold a JSON object.", param=f"{path}.function.arguments"
        )
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}

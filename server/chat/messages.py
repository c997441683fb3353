"""From the messages of a request to what a chat template takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from server.chat.protocol import ChatMessage, ContentPart, FunctionCall, ToolCall
from server.errors import BadRequestError
from server.tools.json_text import strict_loads

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as dicts of plain data; text parts are joined with a line break, as vLLM joins them.

    Raises
    ------
    BadRequestError
        Names the message and the field that is wrong or not served.
    """
    calls: dict[str, str] = {}
    return [_message(message, f"messages[{i}]", calls) for i, message in enumerate(messages)]


def _message(message: ChatMessage, path: str, calls: dict[str, str]) -> dict[str, Any]:
    """``calls`` are the tools called so far, by call id; this message's are added."""
    role = message.role
    if role not in ROLES:
        raise BadRequestError(
            f"Invalid value for '{path}.role': {role[:100]!r}. The roles are {', '.join(ROLES)}.",
            param=f"{path}.role",
            code="invalid_value",
        )
    _refuse_misplaced(message, path)
    plain: dict[str, Any] = {"role": role, "content": _content(message, path)}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_calls:
        plain["tool_calls"] = [_tool_call(call, f"{path}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)]
        own: set[str] = set()
        for index, call in enumerate(plain["tool_calls"]):
            if call["id"] in own:
                place = f"{path}.tool_calls[{index}].id"
                raise BadRequestError(
                    f"'{place}' is {call['id'][:100]!r}, the id of another call of this message.", param=place
                )
            own.add(call["id"])
            calls[call["id"]] = call["function"]["name"]  # agents may number the calls of each turn anew
    if message.function_call is not None:
        function = _function(message.function_call, f"{path}.function_call")
        plain["tool_calls"] = [{"id": f"call_{len(calls)}", "type": "function", "function": function}]
    if message.tool_call_id is not None:
        if message.tool_call_id not in calls:
            raise BadRequestError(
                f"'{path}.tool_call_id' is {message.tool_call_id[:100]!r}, but no earlier message of the role "
                "'assistant' has a call with that id.",
                param=f"{path}.tool_call_id",
                code="invalid_value",
            )
        plain["tool_call_id"] = message.tool_call_id
        plain.setdefault("name", calls[message.tool_call_id])
    if role == "function":
        plain["role"] = "tool"
    thinking = message.reasoning if message.reasoning_content is None else message.reasoning_content
    if thinking is not None:
        plain["reasoning_content"] = thinking
    return plain


def _refuse_misplaced(message: ChatMessage, path: str) -> None:
    if message.audio is not None:
        raise BadRequestError(f"'{path}.audio' is not served.", param=f"{path}.audio", code="unsupported")
    if message.function_call is not None and message.tool_calls:
        raise BadRequestError(
            f"'{path}' has both 'function_call' and 'tool_calls'; give one of them.", param=f"{path}.function_call"
        )
    if message.role != "assistant":
        for field in ("refusal", "tool_calls", "function_call", "reasoning_content", "reasoning"):
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
        said = ("tool_calls", "function_call", "refusal", "reasoning_content", "reasoning")
        if message.role == "function" or any(getattr(message, field) is not None for field in said):
            return message.refusal or ""
        raise BadRequestError(f"The field '{path}.content' is required.", param=f"{path}.content", code="missing_field")
    if not content and message.role == "user":  # agents write it for assistants and tools that said nothing
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
    """Templates know functions alone, so a custom call is shown as one of a single text."""
    for kind, value in (("function", call.function), ("custom", call.custom)):
        if (value is not None) != (call.type == kind):
            raise BadRequestError(
                f"'{path}' is of the type '{call.type}' and must have '{call.type}', and nothing else.",
                param=f"{path}.{call.type}",
            )
    if call.custom is not None:
        function: dict[str, Any] = {"name": call.custom.name, "arguments": {"input": call.custom.input}}
        return {"id": call.id, "type": "function", "is_custom": True, "function": function}
    assert call.function is not None  # checked above
    return {"id": call.id, "type": "function", "function": _function(call.function, f"{path}.function")}


def _function(function: FunctionCall, path: str) -> dict[str, Any]:
    """Templates write arguments out themselves, so they take them parsed."""
    try:
        arguments = strict_loads(function.arguments or "{}")
    except ValueError as error:
        raise BadRequestError(
            f"'{path}.arguments' is not valid JSON: {str(error)[:200]}.", param=f"{path}.arguments"
        ) from error
    if arguments is None:  # some agent frameworks write a call without arguments so
        arguments = {}
    if not isinstance(arguments, dict):
        raise BadRequestError(f"'{path}.arguments' must hold a JSON object.", param=f"{path}.arguments")
    return {"name": function.name, "arguments": arguments}

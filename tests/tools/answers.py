"""Reading answers of a chat endpoint, whole and streamed, into one shape."""

from __future__ import annotations

import json
from typing import Any

import jsonschema


def events(text: str) -> list[dict[str, Any]]:
    """The JSON of a stream's events; its last must be [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]", lines[-1]
    return [json.loads(line) for line in lines[:-1]]


def from_message(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content") or "",
        "calls": [call_of(call) for call in message.get("tool_calls") or ()],
        "function_call": message.get("function_call"),
        "finish_reason": choice["finish_reason"],
    }


def from_chunks(chunks: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """Join a stream's deltas; a call's name and id come first, and once."""
    said: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "function_call": None, "finish_reason": None}
    calls: list[dict[str, Any]] = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            said["content"] += delta.get("content") or ""
            said["reasoning"] += delta.get("reasoning_content") or ""
            said["finish_reason"] = choice["finish_reason"] or said["finish_reason"]
            for piece in delta.get("tool_calls") or ():
                kind = "custom" if "custom" in piece else "function"
                key = "input" if kind == "custom" else "arguments"
                if piece["index"] == len(calls):
                    assert piece["id"]
                    assert piece["type"] == kind
                    calls.append({"type": kind, kind: {"name": piece[kind]["name"], key: ""}})
                calls[piece["index"]][kind][key] += piece[kind][key]
            if "function_call" in delta:
                call = said["function_call"] or {"name": "", "arguments": ""}
                piece = delta["function_call"]
                said["function_call"] = {
                    "name": call["name"] + piece.get("name", ""),
                    "arguments": call["arguments"] + piece["arguments"],
                }
    said["calls"] = [call_of(call) for call in calls]
    return said


def call_of(call: dict[str, Any]) -> tuple[str, str, str]:
    if call["type"] == "custom":
        return "custom", call["custom"]["name"], call["custom"]["input"]
    return "function", call["function"]["name"], call["function"]["arguments"]


def check_calls(said: dict[str, Any], tools: list[dict[str, Any]]) -> None:
    """Every complete call has arguments that parse and fit its tool's schema."""
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools if "function" in tool}
    calls = [call for call in said["calls"] if call[0] == "function"]
    if said["finish_reason"] == "length":
        calls = calls[:-1]
    for _, name, arguments in calls:
        value = json.loads(arguments)
        assert isinstance(value, dict)
        if schemas[name] is not None:
            jsonschema.validate(value, schemas[name])

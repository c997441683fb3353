"""A call written as one JSON object, ``{"name": ..., "arguments": {...}}``: what several formats have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from server.tools.json_text import JsonEnd, dump, strict_loads
from server.tools.parser import ToolCallParser

_HEADER = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_FIRST_KEY = '"name"'


class JsonCallParser(ToolCallParser):
    """Steps for the object of a call at the beginning of the buffer; a subclass knows what stands around it.

    A constrained call is shown from its header on. Any other is judged when its object is complete: it must parse, name
    a tool that is offered, and have an object of arguments (also under ``parameters``, or as a string of JSON).
    """

    def __init__(self, tools: Mapping[str, dict[str, Any]], *, is_constrained: bool) -> None:
        super().__init__(tools, is_constrained=is_constrained)
        self._object_end = JsonEnd()
        self._num_seen = 0

    def _begin_object(self, offset: int) -> None:
        """A call's object should stand at ``offset`` of the buffer, after white space."""
        self._object_end = JsonEnd()
        self._num_seen = offset

    def _step_object(self, offset: int) -> Literal["arguments", "call", "text"] | None:
        """``"arguments"`` when they follow in the buffer, ``"call"`` when a whole call was taken, ``"text"`` when there
        is none, ``None`` when more is needed."""
        if self.is_constrained and (header := _HEADER.match(self._buffer, offset)) and header[1] in self.tools:
            self._take(header.end())
            self._begin_call(header[1])
            return "arguments"
        if not self._may_be_call(offset):
            return "text"
        end = self._object_end.feed(self._buffer, self._num_seen)
        self._num_seen = len(self._buffer)
        if end < 0:
            return None
        call = read_call(self._buffer[offset:end], self.tools)
        if call is None:
            return "text"
        self._take(end)
        self._whole_call(*call)
        return "call"

    def _may_be_call(self, offset: int) -> bool:
        body = self._buffer[offset : offset + 64].lstrip()
        if not body:
            return True
        if body[0] != "{":
            return False
        key = body[1:].lstrip()
        # Unconstrained models put keys in any order; a grammar puts the name first.
        return not self.is_constrained or key.startswith(_FIRST_KEY) or _FIRST_KEY.startswith(key)


def read_call(text: str, tools: Mapping[str, Any]) -> tuple[str, str] | None:
    """Name and arguments (JSON text of an object) of a call's object; ``None`` when it is none."""
    try:
        value = strict_loads(text)
        if not isinstance(value, dict):
            return None
        name = value.get("name")
        if not isinstance(name, str) or name not in tools:
            return None
        header = _HEADER.match(text)
        if header is not None:  # as the model wrote it
            return name, text[header.end() : JsonEnd().feed(text, header.end())]
        arguments = value.get("arguments", value.get("parameters"))
        if isinstance(arguments, str):
            arguments = strict_loads(arguments)
        if arguments is None:
            arguments = {}
        return (name, dump(arguments)) if isinstance(arguments, dict) else None
    except ValueError:
        return None

"""An answer that is a call: a JSON object from the first character on.

``{"name": ..., "parameters": {...}}`` in Llama 3.1 to 3.3 (Meta's prompt format page and chat templates; several calls
are separated by a semicolon, and ``<|python_tag|>`` may stand before them), and the same with ``arguments`` for any
model that was asked for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from server.tools.json_call import JsonCallParser, read_call
from server.tools.json_text import dump, strict_loads
from server.tools.parser import Format, json_arguments

_WORDS = r"\s*[^\s{\[<][\s\S]*"
"""What is no call: it begins with anything but a bracket or a tag."""


class BareJsonParser(JsonCallParser):
    """Common to both; an array of calls is understood as well where no grammar rules it out."""

    arguments_key: ClassVar[str]
    opening: ClassVar[str] = ""
    """May stand before the first call."""

    def __init__(self, tools: Mapping[str, dict[str, Any]], *, is_constrained: bool) -> None:
        super().__init__(tools, is_constrained=is_constrained)
        self._state = "start"

    @classmethod
    def call_tag(cls, name: str, parameters: dict[str, Any]) -> Format:
        begin = f'{{"name": {dump(name)}, "{cls.arguments_key}": '
        return {"type": "tag", "begin": begin, "content": json_arguments(parameters), "end": "}"}

    @classmethod
    def optional_format(cls, tags: Sequence[Format], *, is_parallel: bool) -> Format:
        calls = cls.required_format(tags, is_parallel=is_parallel)
        return {"type": "or", "elements": [calls, {"type": "regex", "pattern": _WORDS}]}

    def _step(self) -> bool:
        match self._state:
            case "start":
                return self._step_start()
            case "object":
                return self._step_call()
            case "array":
                return self._step_array()
            case "arguments":
                if not self._step_arguments():
                    return False
                self._state = "object end"
                return True
            case "object end":
                return self._step_object_end()
            case "between":
                return self._step_between()
            case _:
                self._text(self._take(len(self._buffer)))
                return False

    def _step_start(self) -> bool:
        rest = self._buffer.lstrip()
        if self.opening and rest.startswith(self.opening):
            self._buffer = rest[len(self.opening) :]
            self._begin_object(0)
            self._state = "object"
            return True
        if not rest or (self.opening and self.opening.startswith(rest)):
            return False
        if rest[0] == "[" and not self.is_constrained:
            self._state = "array"
        else:
            self._state = "object"
        self._begin_object(0)
        return True

    def _step_call(self) -> bool:
        found = self._step_object(0)
        if found is None:
            return False
        self._state = {"arguments": "arguments", "call": "between", "text": "text"}[found]
        return True

    def _step_object_end(self) -> bool:
        rest = self._buffer.lstrip()
        if not rest:
            return False
        if rest[0] == "}":
            self._buffer = rest[1:]
            self._state = "between"
        else:
            self._state = "text"
        return True

    def _step_between(self) -> bool:
        rest = self._buffer.lstrip()
        if rest[:1] in (";", ","):
            rest = rest[1:].lstrip()
        if not rest:
            return False
        if rest[0] == "{":
            self._buffer = rest
            self._begin_object(0)
            self._state = "object"
        else:
            self._state = "text"
        return True

    def _step_array(self) -> bool:
        end = self._end_finder.feed(self._buffer, self._num_seen)
        self._num_seen = len(self._buffer)
        if end < 0:
            return False
        calls = self._calls_in_array(self._buffer[:end])
        if calls:
            self._take(end)
            for call in calls:
                self._whole_call(*call)
        self._state = "text"
        return True

    def _calls_in_array(self, text: str) -> list[tuple[str, str]]:
        """Empty unless every element is a call."""
        try:
            elements = strict_loads(text)
        except ValueError:
            return []
        calls = [read_call(dump(element), self.tools) for element in elements]
        return [call for call in calls if call is not None] if all(calls) else []

    def _end(self) -> None:
        if self._state in ("start", "object", "array", "between", "text"):
            self._text(self._take(len(self._buffer)))


class JsonParser(BareJsonParser):
    name = "json"
    arguments_key = "arguments"

    @classmethod
    def recognises(cls, template: str) -> bool:
        return True  # the last one asked


class Llama3JsonParser(BareJsonParser):
    name = "llama3_json"
    arguments_key = "parameters"
    opening = "<|python_tag|>"
    shown_tokens = ("<|python_tag|>",)
    separator = "; "

    @classmethod
    def recognises(cls, template: str) -> bool:
        return "<|start_header_id|>" in template and '"parameters"' in template

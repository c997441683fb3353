"""An answer that is a call: a JSON object from the first character on.

``{"name": ..., "parameters": {...}}`` in Llama 3.1 to 4 (Meta's prompt format page and chat templates; several calls
are separated by a semicolon, and ``<|python_tag|>`` may stand before them), and the same with ``arguments`` for any
model that was asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from server.tools.forms import Format, either, tag
from server.tools.json_call import JsonCallParser, read_call
from server.tools.json_text import dump, strict_loads
from server.tools.parser import json_arguments

_WORDS = r"\s*[^\s{\[<][\s\S]*"
"""What is no call: it begins with anything but a bracket or a tag."""


class BareJsonParser(JsonCallParser):
    """Common to both; an array of calls is understood as well where no grammar rules it out."""

    arguments_key: ClassVar[str]
    opening: ClassVar[str] = ""
    """May stand before the first call."""

    @classmethod
    def call_format(cls, name: str, parameters: dict[str, Any], origin: str) -> Format:
        begin = f'{{"name": {dump(name)}, "{cls.arguments_key}": '
        return tag(begin, json_arguments(parameters, origin), "}")

    @classmethod
    def optional_format(cls, functions: Sequence[Format], customs: Sequence[Format], most: int) -> Format:
        words = {"type": "regex", "pattern": _WORDS}
        return either([cls.required_format(functions, customs, most), words])

    def _start(self) -> bool:
        rest = self._buffer.lstrip()
        if self.opening and rest.startswith(self.opening):
            self._buffer = self._buffer.replace(self.opening, "", 1)
            self._state = self._object
        elif not rest or (self.opening and self.opening.startswith(rest)):
            return False
        else:
            self._state = self._array if rest[0] == "[" and not self.is_constrained else self._object
        self._begin_object(0)
        return True

    def _object(self) -> bool:
        found = self._step_object(0)
        if found is None:
            return False
        self._state = {"arguments": self._arguments, "call": self._between, "text": self._words}[found]
        return True

    def _behind_arguments(self) -> bool:
        rest = self._buffer.lstrip()
        if not rest:
            return False
        if rest[0] == "}":
            self._buffer = rest[1:]
            self._state = self._between
        else:
            self._state = self._words
        return True

    def _between(self) -> bool:
        rest = self._buffer.lstrip()
        if rest[:1] in (";", ","):
            rest = rest[1:].lstrip()
        if not rest:
            return False
        if rest[0] == "{":
            self._buffer = rest
            self._begin_object(0)
            self._state = self._object
        else:
            self._state = self._words
        return True

    def _array(self) -> bool:
        end = self._object_end.feed(self._buffer, self._num_seen)
        self._num_seen = len(self._buffer)
        if end < 0:
            return False
        calls = self._calls_in_array(self._buffer[:end])
        if calls:
            self._take(end)
            for call in calls:
                self._whole_call(*call)
        self._state = self._words
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
        if self._state in (self._object, self._between):
            self._words_unless_cut_call()
        elif self._state not in (self._arguments, self._behind_arguments):
            self._words()


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
        is_llama = "<|start_header_id|>" in template or "<|header_start|>" in template
        return is_llama and '"parameters"' in template

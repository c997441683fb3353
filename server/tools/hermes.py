"""JSON in tags: ``<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>``.

The format of NousResearch's Hermes models, of Qwen 2.5 and of Qwen 3, and what a model without a format of its own is
asked for (:mod:`server.tools.prompt`). Source: the models' chat templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from server.tools.json_call import JsonCallParser
from server.tools.json_text import dump
from server.tools.parser import Format, json_arguments

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(JsonCallParser):
    name = "hermes"

    def __init__(self, tools: Mapping[str, dict[str, Any]], *, is_constrained: bool) -> None:
        super().__init__(tools, is_constrained=is_constrained)
        self._state = "text"

    @classmethod
    def recognises(cls, template: str) -> bool:
        return _OPEN in template

    @classmethod
    def call_tag(cls, name: str, parameters: dict[str, Any]) -> Format:
        begin = f'{_OPEN}\n{{"name": {dump(name)}, "arguments": '
        return {"type": "tag", "begin": begin, "content": json_arguments(parameters), "end": f"}}\n{_CLOSE}"}

    @classmethod
    def optional_format(cls, tags: Sequence[Format], *, is_parallel: bool) -> Format:
        return {
            "type": "triggered_tags",
            "triggers": [_OPEN],
            "tags": list(tags),
            "stop_after_first": not is_parallel,
        }

    def _step(self) -> bool:
        match self._state:
            case "text":
                return self._step_text()
            case "open":
                return self._step_open()
            case "arguments":
                if not self._step_arguments():
                    return False
                self._state = "object end"
                return True
            case "object end":
                return self._step_structure("}", "close")
            case _:
                return self._step_structure(_CLOSE, "text")

    def _step_text(self) -> bool:
        if not self._text_until(_OPEN):
            return False
        self._begin_object(len(_OPEN))
        self._state = "open"
        return True

    def _step_open(self) -> bool:
        found = self._step_object(len(_OPEN))
        if found is None:
            return False
        if found == "text":
            self._text(self._take(len(_OPEN)))
        self._state = {"arguments": "arguments", "call": "close", "text": "text"}[found]
        return True

    def _step_structure(self, expected: str, following: str) -> bool:
        """Take ``expected`` after white space; anything else is text again."""
        rest = self._buffer.lstrip()
        if rest.startswith(expected):
            self._buffer = rest[len(expected) :]
            self._state = following
            return True
        if expected.startswith(rest):
            return False
        self._state = "text"
        return True

    def _end(self) -> None:
        if self._state in ("text", "open"):
            self._text(self._take(len(self._buffer)))

"""JSON in tags: ``<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>``.

The format of NousResearch's Hermes models, of Qwen 2.5 and of Qwen 3, and what a model without a format of its own is
asked for (:mod:`server.tools.prompt`). Source: the models' chat templates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from server.tools.custom import TRIGGER
from server.tools.forms import Format, calls_among_words, tag
from server.tools.json_call import JsonCallParser
from server.tools.json_text import dump
from server.tools.parser import json_arguments

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def tagged_calls_among_words(functions: Sequence[Format], customs: Sequence[Format], most: int) -> Format:
    """Words and calls in tags, in any order."""
    triggers = [OPEN] * bool(functions) + [TRIGGER] * bool(customs)
    return calls_among_words([*functions, *customs], triggers, most)


class HermesParser(JsonCallParser):
    name = "hermes"

    @classmethod
    def recognises(cls, template: str) -> bool:
        return OPEN in template

    @classmethod
    def call_format(cls, name: str, parameters: dict[str, Any], origin: str) -> Format:
        begin = f'{OPEN}\n{{"name": {dump(name)}, "arguments": '
        return tag(begin, json_arguments(parameters, origin), f"}}\n{CLOSE}")

    @classmethod
    def optional_format(cls, functions: Sequence[Format], customs: Sequence[Format], most: int) -> Format:
        return tagged_calls_among_words(functions, customs, most)

    def _start(self) -> bool:
        if not self._text_until(OPEN):
            return False
        self._begin_object(len(OPEN))
        self._state = self._open
        return True

    def _open(self) -> bool:
        found = self._step_object(len(OPEN))
        if found is None:
            return False
        if found == "text":
            self._text(self._take(len(OPEN)))
        self._state = {"arguments": self._arguments, "call": self._close, "text": self._start}[found]
        return True

    def _behind_arguments(self) -> bool:
        return self._expect("}", self._close)

    def _close(self) -> bool:
        return self._expect(CLOSE, self._start)

    def _end(self) -> None:
        if self._state in (self._start, self._open):
            self._words_unless_cut_call()

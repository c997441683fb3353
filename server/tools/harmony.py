"""Harmony, the format of gpt-oss: messages on channels, made of special tokens.

``<|channel|>analysis<|message|>`` begins thinking, ``final`` the answer, and ``commentary to=functions.NAME`` a call
whose content is JSON; ``commentary`` without a recipient is words for the user. Source: OpenAI's harmony documentation,
``docs/format.md``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from server.tools.events import CallArguments, CallBegin, CallEnd, Reasoning, Text
from server.tools.json_call import JsonCallParser, read_call
from server.tools.json_text import JsonEnd, dump, strict_loads
from server.tools.parser import Format, json_arguments

_MESSAGE = "<|message|>"
_END = re.compile(r"<\|(?:end|return|call|start)\|>")
_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.-]+)")
_HEADER_BEGINNINGS = ("<|channel|>", "<|start|>", "<|message|>", "<|constrain|>", " to=")


class HarmonyParser(JsonCallParser):
    """Reads thinking as well. The prompt ends with ``<|start|>assistant``, so an answer begins inside a header.

    Special tokens never pass a grammar, so the header of a required call is part of the prompt (:attr:`prefill`), and
    the call names its tool in its JSON.
    """

    name = "harmony"
    shown_tokens = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>")
    prefill = "<|channel|>commentary <|constrain|>json<|message|>"

    def __init__(self, tools: Mapping[str, dict[str, Any]], *, is_constrained: bool) -> None:
        super().__init__(tools, is_constrained=is_constrained)
        self._state = "header"
        self._recipient: str | None = None

    @classmethod
    def recognises(cls, template: str) -> bool:
        return "<|channel|>" in template and "<|message|>" in template

    @classmethod
    def call_tag(cls, name: str, parameters: dict[str, Any]) -> Format:
        begin = f'{{"name": {dump(name)}, "arguments": '
        return {"type": "tag", "begin": begin, "content": json_arguments(parameters), "end": "}"}

    @classmethod
    def required_format(cls, tags: Sequence[Format], *, is_parallel: bool) -> Format:
        return super().required_format(tags, is_parallel=False)

    @classmethod
    def optional_format(cls, tags: Sequence[Format], *, is_parallel: bool) -> None:
        return None

    def _step(self) -> bool:
        match self._state:
            case "header":
                return self._step_header()
            case "object":
                return self._step_constrained_call()
            case "arguments":
                if not self._step_arguments():
                    return False
                self._state = "object end"
                return True
            case "object end":
                self._take(len(self._buffer))
                return False
            case _:
                return self._step_content()

    def _step_header(self) -> bool:
        beginning = self._buffer[:16]
        if not any(beginning.startswith(one) or one.startswith(beginning) for one in _HEADER_BEGINNINGS):
            self._state = "final"  # words without any header
            return True
        position = self._buffer.find(_MESSAGE)
        if position < 0:
            return False
        header = self._take(position)
        self._take(len(_MESSAGE))
        channel = _CHANNEL.search(header)
        recipient = _RECIPIENT.search(header)
        self._recipient = recipient[1] if recipient else None
        if self._recipient is None and self.is_constrained and "<|constrain|>" in header:
            self._begin_object(0)
            self._state = "object"
        elif self._recipient is not None or "<|constrain|>" in header:
            self._state = "call"
        elif channel is not None and channel[1] == "analysis":
            self._state = "analysis"
        else:
            self._state = "final"
        return True

    def _step_constrained_call(self) -> bool:
        found = self._step_object(0)
        if found is None:
            return False
        self._state = {"arguments": "arguments", "call": "object end", "text": "final"}[found]
        return True

    def _step_content(self) -> bool:
        match = _END.search(self._buffer)
        if match is None:
            if self._state != "call":
                self._show(self._take(len(self._buffer) - _held(self._buffer)))
            return False
        content = self._take(match.start())
        if self._state == "call":
            self._call(content)
        else:
            self._show(content)
        self._take(len(match.group()))
        if match.group() == "<|start|>":
            self._buffer = "<|start|>" + self._buffer
        self._state = "header"
        return True

    def _show(self, text: str) -> None:
        if text:
            self._events.append(Reasoning(text) if self._state == "analysis" else Text(text))

    def _call(self, content: str) -> None:
        name = self._recipient
        if name is None:
            call = _first_call(content, self.tools)
        else:
            call = (name, content.strip() or "{}") if name in self.tools and _is_object(content) else None
        if call is None:
            self._text(content)
        else:
            self._events += [CallBegin(call[0]), CallArguments(call[1]), CallEnd()]

    def _end(self) -> None:
        rest = self._take(len(self._buffer))
        if self._state == "call":
            self._call(rest)
        elif self._state in ("header", "object"):
            self._text(_END.sub("", rest))
        else:
            self._show(rest)


def _first_call(content: str, tools: Mapping[str, Any]) -> tuple[str, str] | None:
    end = JsonEnd().feed(content)
    return None if end < 0 else read_call(content[:end], tools)


def _is_object(content: str) -> bool:
    try:
        return not content.strip() or isinstance(strict_loads(content), dict)
    except ValueError:
        return False


def _held(text: str) -> int:
    """Length of an end of ``text`` that may become the end of the message."""
    position = text.rfind("<", max(0, len(text) - max(map(len, _ENDS)) + 1))
    if position < 0:
        return 0
    rest = text[position:]
    return len(rest) if any(end.startswith(rest) for end in _ENDS) else 0

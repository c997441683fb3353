"""Harmony, the format of gpt-oss: messages on channels, made of special tokens.

``<|channel|>analysis<|message|>`` begins thinking, ``final`` the answer, and ``commentary to=functions.NAME`` a call
whose content is JSON; ``commentary`` without a recipient is words for the user. Source: OpenAI's harmony documentation,
``docs/format.md``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from constrained.spec import ReasoningSpec
from server.answer.events import Reader, Reasoning, Text
from server.formats.answer_format import AnswerFormat, call_parser
from server.reasoning.formats import reasoning_format
from server.reasoning.state import ThinkingState, ThinkingWishes
from server.tools.custom import TRIGGER
from server.tools.definitions import ToolRequest
from server.tools.forms import (
    ANY_TEXT,
    Format,
    calls_among_words,
    constant,
    either,
    optional,
    sequence,
    starred,
    tag,
    token,
)
from server.tools.json_text import strict_loads
from server.tools.parser import ToolCallParser, json_arguments

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_END, _RETURN, _CALL = "<|end|>", "<|return|>", "<|call|>"
_HEADER_BEGINNINGS = (_CHANNEL, _START, _MESSAGE, _CONSTRAIN, " to=")
_CONTENT_ENDS = (_END, _RETURN, _CALL, _START, _CHANNEL)
_CONTENT_END = re.compile("|".join(map(re.escape, _CONTENT_ENDS)))
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.-]+)")


class HarmonyParser(ToolCallParser):
    """Reads thinking as well. The prompt ends with ``<|start|>assistant``, so an answer begins inside a header.

    A call ends the answer: ``<|call|>`` is among the tokens that stop these models.
    """

    name = "harmony"
    calls_are_messages = True
    shown_tokens = (_START, _END, _MESSAGE, _CHANNEL, _CONSTRAIN, _RETURN, _CALL)

    def __init__(self, tools: Mapping[str, dict[str, Any]], *, is_constrained: bool) -> None:
        super().__init__(tools, is_constrained=is_constrained)
        self._channel = ""
        self._recipient: str | None = None

    @classmethod
    def recognises(cls, template: str) -> bool:
        return _CHANNEL in template and _MESSAGE in template

    @classmethod
    def call_format(cls, name: str, parameters: dict[str, Any], origin: str) -> Format:
        # Both orders are in the documentation.
        json = optional(constant(" ")), token(_CONSTRAIN), constant("json"), token(_MESSAGE)
        channel_first = sequence(token(_CHANNEL), constant(f"commentary to=functions.{name}"), *json)
        recipient_first = sequence(constant(f" to=functions.{name}"), token(_CHANNEL), constant("commentary"), *json)
        return sequence(either([channel_first, recipient_first]), json_arguments(parameters, origin))

    @classmethod
    def required_format(cls, functions: Sequence[Format], customs: Sequence[Format], most: int) -> Format:
        return sequence(_messages_before("analysis"), either(_last_messages(functions, customs)))

    @classmethod
    def optional_format(cls, functions: Sequence[Format], customs: Sequence[Format], most: int) -> Format:
        words = calls_among_words(customs, [TRIGGER], most) if customs else ANY_TEXT
        return cls._answered(functions, words)

    @classmethod
    def answer_format(cls, functions: Sequence[Format], customs: Sequence[Format], answer: Format, most: int) -> Format:
        return cls._answered(functions, either([*customs, answer]))

    @classmethod
    def _answered(cls, functions: Sequence[Format], words: Format) -> Format:
        final = sequence(_header("final"), words)
        return sequence(_messages_before("analysis", "commentary"), either([*_last_messages(functions, ()), final]))

    def _start(self) -> bool:
        beginning = self._buffer[:16]
        if not any(beginning.startswith(one) or one.startswith(beginning) for one in _HEADER_BEGINNINGS):
            self._channel, self._state = "final", self._content  # words without any header
            return True
        position = self._buffer.find(_MESSAGE)
        if position < 0:
            return False
        header = self._take(position)
        self._take(len(_MESSAGE))
        channel, recipient = _CHANNEL_NAME.search(header), _RECIPIENT.search(header)
        self._channel = channel[1] if channel else ""
        self._recipient = recipient[1] if recipient else None
        if self._recipient is None:
            self._state = self._content
        elif self.is_constrained and self._recipient in self.tools:
            self._begin_call(self._recipient)
            self._state = self._arguments
        else:
            self._state = self._call
        return True

    def _behind_arguments(self) -> bool:
        self._channel, self._state = "final", self._content
        return True

    def _content(self) -> bool:
        """Words or thinking."""
        match = _CONTENT_END.search(self._buffer)
        if match is None:
            self._show(self._take(len(self._buffer) - _held(self._buffer)))
            return False
        self._show(self._take(match.start()))
        self._go_on(match.group())
        return True

    def _call(self) -> bool:
        """A call that no grammar guarantees."""
        match = _CONTENT_END.search(self._buffer)
        if match is None:
            return False
        self._show_call(self._take(match.start()))
        self._go_on(match.group())
        return True

    def _go_on(self, marker: str) -> None:
        """A header follows; where a message was not ended, its marker belongs to that header."""
        if marker not in (_START, _CHANNEL):
            self._take(len(marker))
        self._state = self._start

    def _show(self, text: str) -> None:
        if text:
            self._events.append(Reasoning(text) if self._channel == "analysis" else Text(text))

    def _show_call(self, content: str) -> None:
        if self._recipient in self.tools and _is_object(content):
            self._whole_call(str(self._recipient), content.strip() or "{}")
        else:
            self._text(content)

    def _end(self) -> None:
        rest = self._take(len(self._buffer))
        if self._state == self._call:
            self._show_call(rest)
        elif self._state == self._start:
            self._text(_CONTENT_END.sub("", rest))
        elif self._state == self._content:
            self._show(rest)


class HarmonyFormat(AnswerFormat):
    """One parser reads thinking, words and calls; a prompt that opens the assistant's turn leaves thinking open."""

    MARKERS = reasoning_format("gpt-oss")

    def thinking_state(self, prompt: str) -> ThinkingState:
        return ThinkingState.OPEN if prompt.endswith(f"{_START}assistant") else ThinkingState.CLOSED

    def reasoning_spec(
        self, state: ThinkingState, wishes: ThinkingWishes, *, has_form: bool, constrains_calls: bool
    ) -> ReasoningSpec | None:
        if state is ThinkingState.CLOSED:
            return None
        if not constrains_calls and (has_form or wishes.budget is not None):
            # Up to the final channel everything counts as thinking: what is asked for begins there.
            return self._spec("", self.MARKERS.end, wishes, is_thinking=True, budget=wishes.budget)
        return self._spec(
            self.MARKERS.start, _END, wishes, is_thinking=False, may_think_again=True, budget=wishes.budget
        )

    def splitter(self, state: ThinkingState, *, keeps_markers: bool) -> Reader | None:
        return None

    def parser(self, tools: ToolRequest | None, *, is_constrained: bool) -> Reader | None:
        return call_parser(self.calls, tools, is_constrained=is_constrained)


def _header(channel: str) -> Format:
    return sequence(token(_CHANNEL), constant(channel), token(_MESSAGE))


def _messages_before(*channels: str) -> Format:
    """Messages on these channels, each ended and the next begun."""
    messages = [
        tag(token(_CHANNEL), sequence(constant(channel), token(_MESSAGE), ANY_TEXT), token(_END))
        for channel in channels
    ]
    return starred(sequence(either(messages), token(_START), constant("assistant")))


def _last_messages(functions: Sequence[Format], customs: Sequence[Format]) -> list[Format]:
    """The messages that call something. A custom tool is called in the words of a commentary."""
    return [*functions, *(sequence(_header("commentary"), custom) for custom in customs)]


def _is_object(content: str) -> bool:
    try:
        return not content.strip() or isinstance(strict_loads(content), dict)
    except ValueError:
        return False


def _held(text: str) -> int:
    """Length of an end of ``text`` that may become the end of the message."""
    position = text.rfind("<", max(0, len(text) - max(map(len, _CONTENT_ENDS)) + 1))
    if position < 0:
        return 0
    rest = text[position:]
    return len(rest) if any(end.startswith(rest) for end in _CONTENT_ENDS) else 0

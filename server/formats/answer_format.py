"""How one model writes its answers: where it thinks, how it calls tools, and what its prompt opens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from constrained.spec import ReasoningSpec
from server.answer.events import Reader
from server.reasoning.formats import ReasoningFormat
from server.reasoning.splitter import ReasoningSplitter
from server.reasoning.state import ThinkingState, ThinkingWishes, thinking_state
from server.text.tokenizer import Tokenizer
from server.tools.custom import CustomCallParser
from server.tools.definitions import ToolRequest
from server.tools.parser import ToolCallParser


def needs_words(template: str | None) -> bool:
    """Whether a chat template shows its model no tools: messages tell of them then (:mod:`server.tools.prompt`)."""
    return template is None or "tools" not in template


def call_parser(kind: type[ToolCallParser], tools: ToolRequest | None, *, is_constrained: bool) -> Reader:
    """What finds the calls of ``tools`` in a text, those of custom tools as well."""
    parser = kind({} if tools is None else tools.functions, is_constrained=is_constrained)
    names = frozenset[str]() if tools is None else tools.custom_names
    return CustomCallParser(names, parser, is_constrained=is_constrained) if names else parser


class AnswerFormat(ABC):
    """The format of one model, settled once from the settings and the chat template.

    Parameters
    ----------
    thinking
        Its markers of thinking; ``None``: it does not think.
    calls
        The form of its calls.
    """

    def __init__(
        self,
        thinking: ReasoningFormat | None,
        calls: type[ToolCallParser],
        template: str | None,
        tokenizer: Tokenizer,
    ) -> None:
        self.thinking = thinking
        self.calls = calls
        self.tools_need_words = needs_words(template)
        self._template = template or ""
        self._tokenizer = tokenizer

    @cached_property
    def shown_ids(self) -> frozenset[int]:
        """Special tokens whose spelling the readers must see."""
        spellings = [*self.calls.shown_tokens]
        if self.thinking is not None:
            spellings += [self.thinking.start, self.thinking.end]
        ids = (self._tokenizer.control_ids.get(spelling) for spelling in spellings)
        return frozenset(token_id for token_id in ids if token_id is not None)

    @abstractmethod
    def thinking_state(self, prompt: str) -> ThinkingState:
        """Whether an answer to the rendered ``prompt`` begins with thinking."""

    def opening(self, prompt: str) -> str:
        """What a generation prompt that leaves thinking open is continued with, so that it does not."""
        return ""

    @abstractmethod
    def reasoning_spec(
        self, state: ThinkingState, wishes: ThinkingWishes, *, has_form: bool, constrains_calls: bool
    ) -> ReasoningSpec | None:
        """What the scheduler is told; ``None`` when the answer holds no thinking: everything in it is answer then.

        Parameters
        ----------
        has_form
            Whether a grammar holds the answer.
        constrains_calls
            Whether that grammar is of calls.
        """

    @abstractmethod
    def splitter(self, state: ThinkingState, *, keeps_markers: bool) -> Reader | None:
        """What tells thinking from the answer; ``None`` where there is none, or :meth:`parser` does it."""

    @abstractmethod
    def parser(self, tools: ToolRequest | None, *, is_constrained: bool) -> Reader | None:
        """What reads the answer; ``None`` where it is words alone."""

    def _spec(self, start: str, end: str, wishes: ThinkingWishes, **rest: Any) -> ReasoningSpec | None:
        start_ids, end_ids = self._ids(start), self._ids(end)
        if not end_ids:
            return None
        return ReasoningSpec(think_start_ids=start_ids, think_end_ids=end_ids, stops_apply=wishes.stops_apply, **rest)

    def _ids(self, marker: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode_prompt(marker, add_special_tokens=False)) if marker else ()


class TaggedFormat(AnswerFormat):
    """Thinking stands between two markers before the answer, whose words and calls any parser reads."""

    @cached_property
    def _boundaries(self) -> Sequence[str]:
        markers = () if self.thinking is None else (self.thinking.start, self.thinking.end)
        return [one for one in self._tokenizer.control_ids if one not in markers]

    def thinking_state(self, prompt: str) -> ThinkingState:
        if self.thinking is None:
            return ThinkingState.CLOSED
        return thinking_state(prompt, self.thinking, self._boundaries)

    def opening(self, prompt: str) -> str:
        form = self.thinking
        if form is None or not form.is_opened_here or self.thinking_state(prompt) is not ThinkingState.UNSAID:
            return ""
        return f"{form.start}\n" if "enable_thinking" in self._template or form.name == "deepseek-r1" else ""

    def reasoning_spec(
        self, state: ThinkingState, wishes: ThinkingWishes, *, has_form: bool, constrains_calls: bool
    ) -> ReasoningSpec | None:
        form = self.thinking
        if form is None or state is ThinkingState.CLOSED:
            return None
        if state is ThinkingState.OPEN:
            return self._spec("", form.end, wishes, is_thinking=True, budget=wishes.budget)
        return self._spec(form.start, form.end, wishes, is_thinking=False)

    def splitter(self, state: ThinkingState, *, keeps_markers: bool) -> Reader | None:
        if self.thinking is None or state is ThinkingState.CLOSED:
            return None
        return ReasoningSplitter(self.thinking, state, keeps_markers=keeps_markers)

    def parser(self, tools: ToolRequest | None, *, is_constrained: bool) -> Reader | None:
        return None if tools is None else call_parser(self.calls, tools, is_constrained=is_constrained)

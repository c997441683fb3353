"""What is asked of the model. A dialect's body becomes this, and nothing from here on knows the body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from constrained.spec import GrammarSpec
from sampling.params import SamplingParams
from server.reasoning.state import NO_WISHES, ThinkingState, ThinkingWishes
from server.tools.definitions import ToolRequest


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """What the chat template renders."""

    messages: Sequence[dict[str, Any]]
    """As chat templates take them."""
    tools: ToolRequest | None = None
    """``None``: none may be called."""
    opens_turn: bool = True
    """Whether the template opens the assistant's turn."""
    continues_last: bool = False
    """Whether the answer goes on in the last message."""
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    effort: str | None = None
    """A hint for the template; ``none`` turns thinking off where the template can."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What the answer continues."""

    token_ids: list[int]
    text: str
    """Of a conversation with the marks of :class:`~server.text.protected_text.ProtectedText`."""
    thinking: ThinkingState = ThinkingState.CLOSED


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """What the answer has to fit."""

    spec: GrammarSpec | None
    """``None``: nothing."""
    field: str
    """The request's field that asks for it."""
    constrains_calls: bool = False
    has_free_text: bool = False
    """Whether words that nothing constrains may stand around calls."""


@dataclass(frozen=True, kw_only=True)
class AnswerRequest:
    """One request."""

    prompt: Conversation | Sequence[Prompt]
    sampling: SamplingParams
    """Its ``max_tokens`` is settled once the prompt's length is known."""
    max_tokens: int | None
    """``None``: as many as fit."""
    constraint: Constraint
    """Of an answer in words; calls are added to it."""
    thinking: ThinkingWishes = NO_WISHES
    prediction: str = ""
    """What the client expects the answer to be; changes the speed alone."""
    is_lenient: bool = False
    """Whether what no engine can enforce is reported instead of refused."""
    grammar_backend: str | None = None
    skip_special_tokens: bool = True
    echoes: bool = False
    """Whether the prompt is shown before the answer."""
    priority: int = 0
    may_draft: bool = True
    is_streamed: bool = False
    field_names: Mapping[str, str] = field(default_factory=dict)
    """What the dialect calls a field that errors name otherwise: ``messages``, ``prompt``, ``max_tokens``, ..."""

    @property
    def tools(self) -> ToolRequest | None:
        return self.prompt.tools if isinstance(self.prompt, Conversation) else None

"""Whether a request thinks, read from its own rendered prompt, and what it wishes of that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from server.reasoning.formats import ReasoningFormat


class ThinkingState(Enum):
    OPEN = "open"
    """The answer begins inside a thinking part."""
    CLOSED = "closed"
    """The prompt has ended the thinking part: everything is answer."""
    UNSAID = "unsaid"
    """The model may begin one."""


@dataclass(frozen=True, kw_only=True)
class ThinkingWishes:
    """What is wished of the thinking, if there is any."""

    budget: int | None = None
    """Most tokens of it."""
    stops_apply: bool = False
    """Whether stop strings end an answer inside it, too."""
    is_separate: bool = True
    """Whether it stands apart; otherwise it is part of the words, as it was written."""
    is_shown: bool = True


NO_WISHES = ThinkingWishes()


def thinking_state(prompt: str, form: ReasoningFormat, control_spellings: Iterable[str]) -> ThinkingState:
    """What the prompt's last turn says.

    Only the text after the last control token counts: what users write about thinking opens nothing. (Spellings of
    control tokens in their text are broken by marks, so they are not mistaken for real ones.) Where a template has no
    control token there, only what the prompt ends with counts.

    Parameters
    ----------
    prompt
        The rendered chat template.
    control_spellings
        Special tokens of the tokenizer, the thinking markers not among them.
    """
    ending = prompt.rstrip()
    if ending.endswith(form.start):
        return ThinkingState.OPEN
    if ending.endswith(form.end):
        return ThinkingState.CLOSED
    boundary = max((prompt.rfind(one) + len(one) for one in control_spellings if one in prompt), default=-1)
    if boundary < 0:
        return ThinkingState.UNSAID
    start, end = prompt.rfind(form.start, boundary), prompt.rfind(form.end, boundary)
    if start < 0 and end < 0:
        return ThinkingState.UNSAID
    return ThinkingState.OPEN if start > end else ThinkingState.CLOSED

"""How models mark their thinking, by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReasoningFormat:
    name: str
    start: str
    end: str
    is_opened_here: bool = False
    """Whether a prompt that leaves the choice open is continued with ``start``: such models begin with it anyway, and
    what a prompt has opened is known before the first token."""


REASONING_FORMATS: dict[str, ReasoningFormat] = {
    one.name: one
    for one in (
        ReasoningFormat("deepseek-r1", "<think>", "</think>", is_opened_here=True),
        ReasoningFormat("qwen3", "<think>", "</think>", is_opened_here=True),
        ReasoningFormat("think", "<think>", "</think>"),
        ReasoningFormat("gpt-oss", "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    )
}

ALIASES = {"deepseek_r1": "deepseek-r1", "gpt_oss": "gpt-oss", "harmony": "gpt-oss", "generic": "think"}


def reasoning_format(name: str) -> ReasoningFormat:
    """The format of that name.

    Raises
    ------
    ValueError
        Names the ones there are.
    """
    found = REASONING_FORMATS.get(ALIASES.get(name, name))
    if found is None:
        names = ", ".join(sorted([*REASONING_FORMATS, *ALIASES]))
        raise ValueError(f"there is no reasoning parser {name[:100]!r}; there are {names}")
    return found


def recognise(template: str | None) -> ReasoningFormat | None:
    """The format that a chat template speaks of; ``None`` when it speaks of no thinking."""
    if template is None:
        return None
    if "<|channel|>" in template and "analysis" in template:
        return REASONING_FORMATS["gpt-oss"]
    if "<think>" not in template and "</think>" not in template:
        return None
    if "enable_thinking" in template:
        return REASONING_FORMATS["qwen3"]
    return REASONING_FORMATS["deepseek-r1" if "<\uff5cAssistant\uff5c>" in template else "think"]

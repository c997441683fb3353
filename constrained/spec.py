"""The form a request asks for. Free of torch: shared by the HTTP process and the scheduler."""

from __future__ import annotations

from typing import Literal

import msgspec

GrammarKind = Literal["json_schema", "regex", "ebnf", "structural_tag"]
GrammarBackendName = Literal["auto", "xgrammar", "llguidance", "outlines", "none"]
"""Those that are always there; plugins register further ones."""


class GrammarSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One constraint. ``json_object`` is ``json_schema`` with ``{"type": "object"}``; ``choice`` is a regex."""

    kind: GrammarKind
    value: str
    """The schema or structural tag as JSON text with its keys in the author's order, the pattern, or the grammar."""
    strict: bool = False
    """OpenAI's ``strict``: objects that declare properties and leave ``additionalProperties`` unsaid are closed."""
    lenient: bool = False
    """Accept keywords that nothing enforces, and report them, instead of refusing them."""
    backend: str | None = None
    """A backend named by the request; ``None`` means the server's."""


class ReasoningSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How this request thinks, read from its own rendered prompt."""

    think_end_ids: tuple[int, ...]
    """Token ids of the end-of-thinking marker."""
    is_thinking: bool
    """Whether the prompt leaves a thinking part open."""
    think_start_ids: tuple[int, ...] = ()
    """Token ids of the marker by which the model itself may begin a thinking part; empty where it cannot."""
    may_think_again: bool = False
    """Whether that marker counts anywhere in the answer, not only at its beginning."""
    budget: int | None = None
    """Most thinking tokens before the marker is forced."""
    stops_apply: bool = False
    """Whether stop strings end an answer inside its thinking, too."""

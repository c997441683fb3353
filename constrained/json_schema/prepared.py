"""The checked and rewritten form of a constraint: what a backend compiles."""

from __future__ import annotations

from typing import Literal

import msgspec

PreparedKind = Literal["json_schema", "regex", "ebnf", "lark", "structural_tag"]
JsonWhitespace = Literal["compact", "bounded", "any"]
UndeclaredProperties = Literal["closed", "open"]

LARK_HEADER = '%llguidance {"no_forcing": true}\n'
"""Every legal spelling of a forced text stays legal; proposing the canonical one is the drafter's business."""


class Notice(msgspec.Struct, frozen=True):
    """Something a client should know about how its constraint is served."""

    pointer: str
    message: str


class PreparedGrammar(msgspec.Struct, frozen=True):
    """What to compile, and with which engine.

    ``kind`` says how ``text`` is read: a JSON Schema, a regular expression matched against the whole answer, an
    xgrammar EBNF grammar (which reads GBNF too), a Lark grammar in llguidance's dialect, or an xgrammar structural tag
    in its newer ``format`` form.
    """

    backend: str
    kind: PreparedKind
    text: str
    notices: tuple[Notice, ...] = ()


class Limits(msgspec.Struct, frozen=True):
    """Bounds checked before anything heavy happens."""

    max_bytes: int = 2_000_000
    """Most UTF-8 bytes of a specification."""
    max_depth: int = 200
    """Deepest nesting of arrays and objects inside a schema or structural tag."""
    max_nodes: int = 500_000
    """Most JSON values inside a schema or structural tag."""
    max_enum_values: int = 100_000
    max_properties: int = 2_000
    """Most properties that one schema may declare: engines look at all that are optional at once."""
    max_pattern_bytes: int = 20_000
    max_pattern_states: int = 200_000
    """Largest size of a pattern with its counted repetitions written out."""
    max_branches: int = 512
    """Most alternatives that one schema location may unfold into."""
    max_rules: int = 20_000
    number_digits: int | None = 20
    """Most digits of a number before the point, and again behind it, where nothing else bounds them; ``None``: any."""
    max_key_length: int = 64
    """Longest undeclared property name, in characters."""


class PrepareOptions(msgspec.Struct, frozen=True):
    """The server's side of a preparation."""

    backend: str = "auto"
    whitespace: JsonWhitespace = "bounded"
    undeclared_properties: UndeclaredProperties = "closed"
    limits: Limits = Limits()

"""Grammars in llguidance's dialect of Lark."""

from __future__ import annotations

import json

from constrained.json_schema.prepared import LARK_HEADER, JsonWhitespace
from constrained.json_schema.solving.solver import Solver
from constrained.json_schema.writing.writer import GrammarWriter
from constrained.patterns import tree
from constrained.patterns.render import lark_terminal, rust_regex
from constrained.patterns.tree import Node


class LarkWriter(GrammarWriter):
    """Tokens become terminals, which may be intersected and complemented; rules may carry a parameter."""

    engine = "llguidance"

    def __init__(self, solver: Solver, whitespace: JsonWhitespace) -> None:
        self._terminals: dict[str, str] = {}
        super().__init__(solver, whitespace)

    def token(self, language: Node, name: str | None = None) -> str:
        return self._terminal(lark_terminal(language), name)

    def texts(self, texts: list[str], suffix: Node = tree.EPSILON) -> str:
        options = "|".join(map(_literal_regex, texts))
        end = "" if isinstance(suffix, tree.Epsilon) else rust_regex(suffix)
        return self._terminal(f"/(?:{options}){end}/" if len(texts) > 1 and end else f"/{options}{end}/")

    def remainders(self, schema: dict[str, object], pointer: str) -> str:
        return self.rule("%json " + json.dumps({"x-guidance": {"whitespace_flexible": False}, **schema}))

    def distinct(self, values: list[str], low: int, high: int, pointer: str) -> str:
        """A rule whose parameter's bits are the values already taken (llguidance, docs/parametric.md)."""
        name, width = self.reserve(), f"[0:{len(values)}]"
        options = [f'"" %if bit_count_ge({width}, {low})']
        tokens = [self.texts([value]) for value in values]
        for index, token in enumerate(tokens):
            free = f"and(bit_clear({index}), bit_count_lt({width}, {high}))"
            options.append(f"{self.comma} {token} {name}::set_bit({index}) %if {free}")
        self.define(f"{name}::_", " | ".join(options))
        body = [f"{self.open_array} {one} {name}::{1 << i} {self.close_array}" for i, one in enumerate(tokens)]
        return " | ".join(body + ([self.empty_array] if low == 0 else []))

    def finish(self) -> str:
        lines = [f"{name}: {body}" for name, body in self.rules.items()]
        lines += [f"{name}: {body}" for body, name in self._terminals.items()]
        return LARK_HEADER + "\n".join(lines) + "\n"

    def _terminal(self, body: str, name: str | None = None) -> str:
        return self._terminals.setdefault(body, name or f"T{len(self._terminals)}")


def _literal_regex(text: str) -> str:
    """A regular expression for one string, fit to stand between slashes."""
    return "".join(c if c.isalnum() and c.isascii() else f"\\x{{{ord(c):x}}}" for c in text)

"""Writes shapes as the rules of a grammar; what a rule looks like is left to one subclass for each dialect.

Every token is a whole JSON token, and whitespace belongs to the punctuation, so that the longest match is always the
right one and two alternatives never disagree on where a token ends.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque

from constrained.json_schema.errors import SchemaError, UnenforceableError
from constrained.json_schema.prepared import JsonWhitespace
from constrained.json_schema.solving.shapes import (
    ArrayShape,
    ConstantShape,
    Goal,
    NumberShape,
    ObjectShape,
    Shape,
    StringShape,
)
from constrained.json_schema.solving.solver import Solver
from constrained.json_schema.writing import rules_array, rules_object
from constrained.json_schema.writing.rules_number import number_symbol
from constrained.patterns import charset, tree
from constrained.patterns.language import full_language
from constrained.patterns.render import json_quoted
from constrained.patterns.tree import Node

MAX_WHITESPACE = 8
_SPACE = tree.Chars(charset.of(" \t\n\r"))
_SPACES = {
    "compact": tree.EPSILON,
    "bounded": tree.repeat(_SPACE, 0, MAX_WHITESPACE),
    "any": tree.repeat(_SPACE, 0, None),
}
_QUOTE = tree.literal('"')
# Any spelling of a character, for strings whose value no pattern looks at; surrogates only in pairs.
_FREE_CHARACTER = full_language(
    r"[^\"\\\x00-\x1f]|\\[\"\\/bfnrt]|\\u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)


class GrammarWriter(ABC):
    """Collects the rules of one grammar.

    Parameters
    ----------
    solver
        Unfolds the goals.
    whitespace
        What may stand between two JSON tokens.
    start
        Name of the start rule.
    """

    engine: str
    """For messages."""

    def __init__(self, solver: Solver, whitespace: JsonWhitespace, start: str = "start") -> None:
        self.solver = solver
        self.start = start
        self.space: Node = _SPACES[whitespace]
        self.rules: dict[str, str] = {}
        self._bodies: dict[str, str] = {}
        self._goals: dict[Goal, str] = {}
        self._queue: deque[Goal] = deque()
        self._keys: dict[str, str] = {}
        self._lengths: dict[tuple[int, int | None], str] = {}
        space, literal, concat = self.space, tree.literal, tree.concat
        self.open_object = self.token(concat([literal("{"), space]), "LBRACE")
        self.close_object = self.token(concat([space, literal("}")]), "RBRACE")
        self.empty_object = self.token(concat([literal("{"), space, literal("}")]), "EMPTY_OBJECT")
        self.open_array = self.token(concat([literal("["), space]), "LBRACKET")
        self.close_array = self.token(concat([space, literal("]")]), "RBRACKET")
        self.empty_array = self.token(concat([literal("["), space, literal("]")]), "EMPTY_ARRAY")
        self.comma = self.token(concat([space, literal(","), space]), "COMMA")

    @abstractmethod
    def token(self, language: Node, name: str | None = None) -> str:
        """Symbol of one JSON token."""

    @abstractmethod
    def texts(self, texts: list[str], suffix: Node = tree.EPSILON) -> str:
        """Symbol of a token that is one of the exact texts, then ``suffix``."""

    @abstractmethod
    def finish(self) -> str:
        """The grammar's text."""

    def remainders(self, schema: dict[str, object], pointer: str) -> str:
        """Symbol of numbers with ``multipleOf`` that no short pattern describes, from a schema of numbers."""
        raise UnenforceableError(f"this multipleOf cannot be enforced by {self.engine}", pointer)

    def distinct(self, values: list[str], low: int, high: int, pointer: str) -> str:
        """Body of arrays of distinct values out of a list, between ``low`` and ``high`` of them."""
        raise UnenforceableError(f"uniqueItems cannot be enforced by {self.engine}", pointer)

    def write(self, goal: Goal) -> str:
        """The grammar of ``goal``'s values.

        Raises
        ------
        SchemaError
            No value satisfies the goal.
        """
        self.rules[self.start] = self.add(self.solver, goal)
        return self.finish()

    def add(self, solver: Solver, goal: Goal) -> str:
        """Write the rules of a goal of one more document; its symbol. Raises as :meth:`write` does."""
        if not solver.is_inhabited(goal):
            raise solver.why_empty(goal)
        self.solver = solver
        most = len(self.rules) + solver.limits.max_rules
        symbol = self.value(goal)
        while self._queue:
            one = self._queue.popleft()
            self.rules[self._goals[one]] = " | ".join(self._alternatives(one))
            if len(self.rules) > most:
                raise SchemaError(f"the schema needs more than {solver.limits.max_rules:,} grammar rules")
        return symbol

    def value(self, goal: Goal) -> str:
        """Symbol of a goal's values; its rule is written later."""
        name = self._goals.get(goal)
        if name is None:
            name = f"v{len(self._goals)}"
            self._goals[goal] = name
            self._queue.append(goal)
        return name

    def rule(self, body: str) -> str:
        """Symbol of a rule; rules with one body are one rule."""
        name = self._bodies.get(body)
        if name is None:
            name = f"r{len(self._bodies)}"
            self._bodies[body] = name
            self.rules[name] = body
        return name

    def reserve(self) -> str:
        """Symbol of a rule whose body follows with :meth:`define`."""
        name = f"r{len(self._bodies)}"
        self._bodies[f"reserved {name}"] = name
        return name

    def define(self, name: str, body: str) -> None:
        self.rules[name] = body

    def declared_key(self, name: str) -> str:
        """Symbol of one property name with its colon."""
        known = self._keys.get(name)
        if known is None:
            colon = tree.concat([self.space, tree.literal(":"), self.space])
            known = self._keys[name] = self.texts([json.dumps(name, ensure_ascii=False)], colon)
        return known

    def key_class(self, language: Node) -> str:
        """Symbol of the property names of a language, with the colon."""
        parts = [_QUOTE, json_quoted(language), _QUOTE, self.space, tree.literal(":"), self.space]
        return self.token(tree.concat(parts))

    def _alternatives(self, goal: Goal) -> list[str]:
        found: dict[str, None] = {}
        error: UnenforceableError | None = None
        for shape in self.solver.shapes(goal):
            try:
                body = self._shape(shape)
            except UnenforceableError as caught:
                if not caught.pointer:
                    caught.pointer = next((literal.node.pointer for literal in goal), "")
                if not self.solver.lenient:
                    raise
                error = caught
                self.solver.notice(caught.pointer, f"left out: {caught.message}")
                continue
            if body is not None:
                found[body] = None
        if not found:
            if error is not None:
                raise error
            raise SchemaError("no value satisfies a part of this schema", next((n.node.pointer for n in goal), ""))
        return list(found)

    def _shape(self, shape: Shape) -> str | None:
        """Body of one shape; ``None`` when it turns out to hold no value."""
        if isinstance(shape, ConstantShape):
            return self.texts([shape.text])
        if isinstance(shape, NumberShape):
            return number_symbol(self, shape)
        if isinstance(shape, StringShape):
            return self._string(shape)
        if isinstance(shape, ArrayShape):
            return rules_array.array_body(self, shape)
        if isinstance(shape, ObjectShape):
            return rules_object.object_body(self, shape)
        raise TypeError(f"unexpected {type(shape).__name__}")

    def _string(self, shape: StringShape) -> str:
        if shape.allowed is not None:
            return self.texts([json.dumps(one, ensure_ascii=False) for one in shape.allowed])
        if shape.is_length_only:
            known = self._lengths.get((shape.min_length, shape.max_length))
            if known is not None:
                return known
            inner = tree.repeat(_FREE_CHARACTER, shape.min_length, shape.max_length)
        else:
            inner = json_quoted(shape.language)
        symbol = self.token(tree.concat([_QUOTE, inner, _QUOTE]))
        if shape.is_length_only:
            self._lengths[(shape.min_length, shape.max_length)] = symbol
        return symbol

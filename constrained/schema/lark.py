"""Writes shapes as a Lark grammar in llguidance's dialect.

Every terminal is a whole JSON token, and whitespace belongs to the punctuation, so that the longest match is always the
right one and two alternatives never disagree on where a token ends.
"""

from __future__ import annotations

import json
from collections import deque

from constrained.schema import lark_array, lark_object
from constrained.schema.errors import SchemaError, UnenforceableError
from constrained.schema.lark_number import number_terminal
from constrained.schema.pattern import tree
from constrained.schema.pattern.language import full_language
from constrained.schema.pattern.render import json_quoted, lark_terminal, rust_regex
from constrained.schema.pattern.tree import Node
from constrained.schema.prepared import JsonWhitespace
from constrained.schema.shapes import (
    ArrayShape,
    ConstantShape,
    Goal,
    NumberShape,
    ObjectShape,
    Shape,
    StringShape,
)
from constrained.schema.solver import Solver

_SPACES = {"compact": "", "bounded": "[ \\t\\n\\r]{0,8}", "any": "[ \\t\\n\\r]*"}
_QUOTE = tree.literal('"')
# Any spelling of a character, for strings whose value no pattern looks at; surrogates only in pairs.
_FREE_CHARACTER = full_language(
    r"[^\"\\\x00-\x1f]|\\[\"\\/bfnrt]|\\u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)


class LarkWriter:
    """Collects the rules and terminals of one grammar."""

    def __init__(self, solver: Solver, whitespace: JsonWhitespace) -> None:
        self.solver = solver
        spaces = _SPACES[whitespace]
        self._space = full_language(spaces) if spaces else tree.EPSILON
        self._terminals: dict[str, str] = {}
        self._rules: dict[str, str] = {}
        self._bodies: dict[str, str] = {}
        self._goals: dict[Goal, str] = {}
        self._queue: deque[Goal] = deque()
        self._keys: dict[str, str] = {}
        self.open_object = self.terminal(f"/\\{{{spaces}/", "LBRACE")
        self.close_object = self.terminal(f"/{spaces}\\}}/", "RBRACE")
        self.empty_object = self.terminal(f"/\\{{{spaces}\\}}/", "EMPTY_OBJECT")
        self.open_array = self.terminal(f"/\\[{spaces}/", "LBRACKET")
        self.close_array = self.terminal(f"/{spaces}\\]/", "RBRACKET")
        self.empty_array = self.terminal(f"/\\[{spaces}\\]/", "EMPTY_ARRAY")
        self.comma = self.terminal(f"/{spaces},{spaces}/", "COMMA")

    def write(self, goal: Goal) -> str:
        """The grammar of ``goal``'s values.

        Raises
        ------
        SchemaError
            No value satisfies the goal.
        """
        if not self.solver.is_inhabited(goal):
            raise SchemaError("no value satisfies this schema: its constraints contradict each other")
        start = self.value(goal)
        while self._queue:
            one = self._queue.popleft()
            self._rules[self._goals[one]] = " | ".join(self._alternatives(one))
            if len(self._rules) + len(self._terminals) > self.solver.limits.max_rules:
                raise SchemaError(f"the schema needs more than {self.solver.limits.max_rules:,} grammar rules")
        lines = [f"start: {start}"]
        lines += [f"{name}: {body}" for name, body in self._rules.items()]
        lines += [f"{name}: {body}" for body, name in self._terminals.items()]
        return "\n".join(lines) + "\n"

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
            self._rules[name] = body
        return name

    def reserve(self) -> str:
        """Symbol of a rule whose body follows with :meth:`define`."""
        name = f"r{len(self._bodies)}"
        self._bodies[f"reserved {name}"] = name
        return name

    def define(self, name: str, body: str) -> None:
        self._rules[name] = body

    def terminal(self, body: str, name: str | None = None) -> str:
        return self._terminals.setdefault(body, name or f"T{len(self._terminals)}")

    def declared_key(self, name: str) -> str:
        """Terminal of one property name with its colon."""
        known = self._keys.get(name)
        if known is None:
            text = f"{literal_regex(json.dumps(name, ensure_ascii=False))}{self._colon_regex}"
            known = self._keys[name] = self.terminal(f"/{text}/")
        return known

    def key_class(self, language: Node) -> str:
        """Terminal of the property names of a language, with the colon."""
        parts = [_QUOTE, json_quoted(language), _QUOTE, self._space, tree.literal(":"), self._space]
        return self.terminal(lark_terminal(tree.concat(parts)))

    @property
    def _colon_regex(self) -> str:
        space = "" if isinstance(self._space, tree.Epsilon) else rust_regex(self._space)
        return f"{space}:{space}"

    def _alternatives(self, goal: Goal) -> list[str]:
        found: dict[str, None] = {}
        error: UnenforceableError | None = None
        for shape in self.solver.shapes(goal):
            try:
                body = self._shape(shape)
            except UnenforceableError as caught:
                error = caught
                self.solver.give_up(caught)
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
            return self.terminal(f"/{shape.text}/")
        if isinstance(shape, NumberShape):
            return number_terminal(self, shape)
        if isinstance(shape, StringShape):
            return self._string(shape)
        if isinstance(shape, ArrayShape):
            return lark_array.array_body(self, shape)
        if isinstance(shape, ObjectShape):
            return lark_object.object_body(self, shape)
        raise TypeError(f"unexpected {type(shape).__name__}")

    def _string(self, shape: StringShape) -> str:
        if shape.allowed is not None:
            texts = "|".join(literal_regex(json.dumps(one, ensure_ascii=False)) for one in shape.allowed)
            return self.terminal(f"/{texts}/")
        if shape.is_length_only:
            inner = tree.repeat(_FREE_CHARACTER, shape.min_length, shape.max_length)
        else:
            inner = json_quoted(shape.language)
        return self.terminal(lark_terminal(tree.concat([_QUOTE, inner, _QUOTE])))


def literal_regex(text: str) -> str:
    """A regular expression for one string, fit to stand between slashes."""
    return "".join(c if c.isalnum() and c.isascii() else f"\\x{{{ord(c):x}}}" for c in text)

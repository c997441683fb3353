"""Grammars inside a structural tag: one lexeme where they are regular, otherwise one for each character."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from constrained.json_schema.writing.lark import LarkWriter
from constrained.patterns import charset, tree
from constrained.patterns.derivative import nullable
from constrained.patterns.tree import Node
from constrained.preparation.ebnf_lark import Rule, RuleWriter, as_one_token, names_in
from constrained.structural_tags.pieces import Grammar, Piece, Text, repeat

_NOT_EMPTY = tree.concat([tree.ANY_CHAR, tree.ANYTHING])
_PRINTED_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)


def unambiguous(printed: str) -> str:
    """A grammar that xgrammar has printed, which ends ``\\x41`` after two digits; its own reader takes more."""
    return _PRINTED_ESCAPE.sub(lambda match: f"\\u00{match[1]}" if match[1] else match.group(), printed)


def grammar_piece(rules: Mapping[str, Node], writer: LarkWriter) -> Piece:
    """The piece of a grammar that begins at ``root``; the rules of a recursive one go to ``writer``."""
    rules = {name: _without_loop(name, body) for name, body in _reachable(rules).items()}
    token = as_one_token(rules)
    if token is not None:
        # The lexer never reads an empty lexeme.
        return repeat(Text(tree.both([token, _NOT_EMPTY])), 0, 1) if nullable(token) else Text(token)
    names = {name: writer.reserve() for name in rules}
    bodies = RuleWriter(names, writer.token)
    for name, body in rules.items():
        writer.define(names[name], bodies.body(body))
    chars = charset.union(charset.NONE, *(one for body in rules.values() for one in _chars(body)))
    piece = Grammar(names["root"], chars)
    return repeat(piece, 0, 1) if "root" in _nullable_rules(rules) else piece


def _without_loop(name: str, body: Node) -> Node:
    """The body of a rule that leads to itself at one of its ends alone, as a repetition: Arden's rule."""
    options = body.parts if isinstance(body, tree.Either) else (body,)
    others = [option for option in options if name not in names_in(option)]
    loops = [option for option in options if name in names_in(option)]
    if not loops or not others:
        return body
    for end, rest in ((-1, slice(None, -1)), (0, slice(1, None))):
        if all(isinstance(one, tree.Concat) and one.parts[end] == Rule(name) for one in loops):
            steps = [tree.concat(one.parts[rest]) for one in loops if isinstance(one, tree.Concat)]
            if not any(name in names_in(step) for step in steps):
                parts = [tree.repeat(tree.either(steps), 0, None), tree.either(others)]
                return tree.concat(parts if end == -1 else parts[::-1])
    return body


def _reachable(rules: Mapping[str, Node]) -> dict[str, Node]:
    found: dict[str, Node] = {}
    queue = ["root"]
    for name in queue:  # grows while it is walked
        if name not in found:
            found[name] = rules[name]
            queue += sorted(names_in(rules[name]))
    return found


def _chars(node: Node) -> Iterable[charset.CharSet]:
    if isinstance(node, tree.Chars):
        yield node.chars
    for child in tree.children(node):
        yield from _chars(child)


def _nullable_rules(rules: Mapping[str, Node]) -> set[str]:
    """Rules that take the empty text: the smallest set that agrees with all rules."""
    found: set[str] = set()
    while added := {name for name, body in rules.items() if name not in found and _is_nullable(body, found)}:
        found |= added
    return found


def _is_nullable(node: Node, rules: set[str]) -> bool:
    if isinstance(node, Rule):
        return node.name in rules
    if isinstance(node, tree.Chars):
        return False
    if isinstance(node, tree.Either):
        return any(_is_nullable(part, rules) for part in node.parts)
    if isinstance(node, tree.Repeat):
        return node.low == 0 or _is_nullable(node.part, rules)
    return all(_is_nullable(part, rules) for part in tree.children(node))

"""EBNF grammars in llguidance's dialect of Lark, for texts to be the same under both engines.

llguidance cuts a text into tokens, each as long as it goes, and then looks for rules that fit them. EBNF knows no
tokens. A grammar without recursion is therefore written as one token, and every other one with a token for each
character; the library's own translator cuts tokens by rule, and loses texts: of ``root ::= x "b"``, ``x ::= [a-z]*``
it takes none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from constrained.json_schema.errors import SchemaError, UnenforceableError
from constrained.json_schema.prepared import LARK_HEADER
from constrained.patterns import charset, tree
from constrained.patterns.charset import CharSet
from constrained.patterns.render import lark_terminal
from constrained.patterns.tree import Node

_MAX_TOKEN_SIZE = 20_000
"""Largest size of a grammar without recursion that is written as one token, with its rules put in place."""
# Escapes of letters and digits; any other character may have a backslash before it.
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "0": "\0", "e": "\x1b"}
_TOKEN = re.compile(
    r"""\s+|\#[^\n]*
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<chars>\[(?:[^\]\\\n]|\\.)*\])
    |(?P<name>[A-Za-z_][A-Za-z0-9_.\-]*)(?P<define>\s*::=)?
    |(?P<count>\{\s*(?P<low>\d+)\s*(?P<comma>,?)\s*(?P<high>\d*|-1)\s*\})
    |(?P<other>[|()*+?.])""",
    re.VERBOSE,
)
_CHARACTER = re.compile(
    r"\\x(?P<x>[0-9a-fA-F]+)|\\u(?P<u>[0-9a-fA-F]{4})|\\U(?P<U>[0-9a-fA-F]{8})|\\(?P<short>.)|(?P<plain>.)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Rule(Node):
    """A rule by its name."""

    name: str


def lark_of_ebnf(text: str) -> str:
    """A grammar of the same texts.

    Parameters
    ----------
    text
        A grammar that :func:`constrained.preparation.ebnf.check_ebnf` has passed.

    Raises
    ------
    SchemaError
        No text satisfies it: ``root`` never ends.
    UnenforceableError
        It uses what only xgrammar has, such as macros and look-aheads.
    """
    rules = read_rules(text)
    token = as_one_token(rules)
    if token is not None:
        return f"{LARK_HEADER}start: TEXT\nTEXT: {lark_terminal(token)}\n"
    tokens: dict[Node, str] = {}
    names = {name: f"r{index}" for index, name in enumerate(rules)}
    writer = RuleWriter(names, lambda chars: tokens.setdefault(chars, f"C{len(tokens)}"))
    lines = [f"start: {names['root']}"]
    lines += [f"{names[name]}: {writer.body(body)}" for name, body in rules.items()]
    lines += [f"{name}: {lark_terminal(chars)}" for chars, name in tokens.items()]
    return LARK_HEADER + "\n".join(lines) + "\n"


def read_rules(text: str) -> dict[str, Node]:
    """The rules of a grammar, without those that never end; the ones that they name are :class:`Rule`.

    Raises
    ------
    SchemaError, UnenforceableError
        As :func:`lark_of_ebnf` does.
    """
    rules = _Reader(text).rules()
    undefined = {name for body in rules.values() for name in names_in(body)} - set(rules)
    if undefined or "root" not in rules:
        raise _only_xgrammar(sorted(undefined)[0] if undefined else "root")
    return _without_endless(rules)


def _only_xgrammar(what: str) -> UnenforceableError:
    return UnenforceableError(f"llguidance does not read {what!r} in an EBNF grammar")


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens: list[re.Match[str]] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise _only_xgrammar(text[position])
            position = match.end()
            if match.lastgroup is not None:
                self._tokens.append(match)
        self._next = 0

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while self._next < len(self._tokens):
            match = self._take()
            if match["define"] is None or match["name"] in found:
                raise _only_xgrammar(match.group())
            found[match["name"]] = self._alternatives()
        return found

    def _peek(self) -> re.Match[str] | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self) -> re.Match[str]:
        self._next += 1
        return self._tokens[self._next - 1]

    def _alternatives(self) -> Node:
        options = [self._sequence()]
        while (match := self._peek()) is not None and match["other"] == "|":
            self._take()
            options.append(self._sequence())
        return tree.either(options)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while (match := self._peek()) is not None and match["define"] is None and match["other"] not in ("|", ")"):
            self._take()
            parts.append(self._quantified(self._atom(match)))
        return tree.concat(parts)

    def _atom(self, match: re.Match[str]) -> Node:
        if match["string"] is not None:
            return tree.literal("".join(map(chr, _codes(match.group()[1:-1]))))
        if match["chars"] is not None:
            return tree.Chars(_char_class(match.group()[1:-1]))
        if match["name"] is not None:
            return Rule(match["name"])
        if match["other"] == ".":
            return tree.ANY_CHAR  # as in llama.cpp, whose grammars these are; xgrammar 0.2.9 does not read it
        if match["other"] != "(":
            raise _only_xgrammar(match.group())
        inner = self._alternatives()
        if (end := self._peek()) is None or end["other"] != ")":
            raise _only_xgrammar("(")
        self._take()
        return inner

    def _quantified(self, node: Node) -> Node:
        match = self._peek()
        if match is None:
            return node
        if match["count"] is not None:
            low = int(match["low"])
            # xgrammar writes -1 for no bound
            high = (None if match["high"] in ("", "-1") else int(match["high"])) if match["comma"] else low
            if high is not None and low > high:
                raise _only_xgrammar(match.group())
        elif match["other"] in ("*", "+", "?"):
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[match.group()]
        else:
            return node
        self._take()
        return tree.repeat(node, low, high)


def _codes(text: str) -> Iterable[int]:
    return (_code(match) for match in _CHARACTER.finditer(text))


def _code(match: re.Match[str]) -> int:
    digits, short = match["x"] or match["u"] or match["U"], match["short"]
    if short is not None and short.isalnum() and short not in _ESCAPES:
        raise _only_xgrammar(match.group())
    code = int(digits, 16) if digits else ord(match["plain"] or _ESCAPES.get(short, short))
    if not charset.contains(charset.ALL, code):
        raise _only_xgrammar(match.group())
    return code


def _char_class(text: str) -> CharSet:
    is_negated = text.startswith("^")
    found: list[tuple[int, int]] = []
    members = list(_CHARACTER.finditer(text, 1 if is_negated else 0))
    while members:
        low = high = _code(members.pop(0))
        if len(members) > 1 and members[0].group() == "-":
            high = _code(members[1])
            del members[:2]
        if low > high:
            raise _only_xgrammar(f"[{text}]")
        found.append((low, high))
    chars = charset.intersection(charset.normalise(found), charset.ALL)
    return charset.complement(chars) if is_negated else chars


def names_in(node: Node) -> set[str]:
    """Names of the rules in a body."""
    if isinstance(node, Rule):
        return {node.name}
    return {name for child in tree.children(node) for name in names_in(child)}


def _without_endless(rules: dict[str, Node]) -> dict[str, Node]:
    """The rules that end, without the alternatives that never do: ``x`` of ``root ::= "a" | x``, ``x ::= "b" x``."""
    ending: set[str] = set()

    def ends(node: Node) -> bool:
        match node:
            case Rule(name):
                return name in ending
            case tree.Either():
                return any(map(ends, tree.children(node)))
            case tree.Repeat(low=0):
                return True
            case tree.Chars(chars):
                return bool(chars)
            case _:
                return all(map(ends, tree.children(node)))

    def prune(node: Node) -> Node:
        match node:
            case tree.Either():
                return tree.either([prune(child) for child in tree.children(node) if ends(child)])
            case tree.Concat():
                return tree.concat(map(prune, tree.children(node)))
            case tree.Repeat(part, low, high):
                return tree.repeat(prune(part), low, high) if ends(part) else tree.EPSILON
            case _:
                return node

    while found := {name for name, body in rules.items() if name not in ending and ends(body)}:
        ending |= found
    if "root" not in ending:
        raise SchemaError("nothing satisfies this grammar: its rule 'root' never ends")
    return {name: prune(body) for name, body in rules.items() if name in ending}


def as_one_token(rules: dict[str, Node]) -> Node | None:
    """The language of ``root``; ``None`` where rules lead back to themselves, or it becomes too large."""
    done: dict[str, Node | None] = {}
    sizes: dict[Node, int] = {}

    def size(node: Node) -> int:
        if node not in sizes:
            sizes[node] = 1 + sum(map(size, tree.children(node)))
        return sizes[node]

    def put_in_place(node: Node) -> Node | None:
        if isinstance(node, Rule):
            if node.name not in done:
                done[node.name] = None  # as it stays where the rule leads back to itself
                done[node.name] = put_in_place(rules[node.name])
            return done[node.name]
        parts: list[Node] = []
        for child in tree.children(node):
            part = put_in_place(child)
            if part is None:
                return None
            parts.append(part)
        if isinstance(node, tree.Concat):
            node = tree.concat(parts)
        elif isinstance(node, tree.Either):
            node = tree.either(parts)
        elif isinstance(node, tree.Repeat):
            node = tree.repeat(parts[0], node.low, node.high)
        return node if size(node) <= _MAX_TOKEN_SIZE else None

    return put_in_place(Rule("root"))


class RuleWriter:
    """Writes bodies of rules in Lark.

    Parameters
    ----------
    names
        The symbol of every rule.
    token
        Gives the symbol of a token for one character.
    """

    def __init__(self, names: Mapping[str, str], token: Callable[[Node], str]) -> None:
        self._names = names
        self._token = token

    def body(self, node: Node) -> str:
        if isinstance(node, Rule):
            return self._names[node.name]
        if isinstance(node, tree.Epsilon):
            return '""'
        if isinstance(node, tree.Chars):
            return self._token(node)
        if isinstance(node, tree.Concat):
            return "(" + " ".join(map(self.body, node.parts)) + ")"
        if isinstance(node, tree.Either):
            return "(" + " | ".join(map(self.body, node.parts)) + ")"
        if isinstance(node, tree.Repeat):
            high = "" if node.high is None else node.high
            return f"({self.body(node.part)}){{{node.low},{high}}}"
        raise TypeError(f"unexpected {type(node).__name__}")

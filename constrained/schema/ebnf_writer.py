"""Grammars in xgrammar's EBNF, which has no set operators: intersections and complements become automata."""

from __future__ import annotations

from constrained.schema.errors import UnenforceableError
from constrained.schema.pattern import charset, tree
from constrained.schema.pattern.automaton import determinise
from constrained.schema.pattern.charset import CharSet
from constrained.schema.pattern.tree import Node
from constrained.schema.prepared import JsonWhitespace
from constrained.schema.solver import Solver
from constrained.schema.writer import GrammarWriter


class EbnfWriter(GrammarWriter):
    """Tokens become rules; a token with set operators one rule for each state of its automaton."""

    engine = "xgrammar"

    def __init__(self, solver: Solver, whitespace: JsonWhitespace, start: str = "root") -> None:
        self._tokens: dict[Node, str] = {}
        self._texts: dict[tuple[tuple[str, ...], Node], str] = {}
        super().__init__(solver, whitespace, start)

    def token(self, language: Node, name: str | None = None) -> str:
        known = self._tokens.get(language)
        if known is None:
            known = self._tokens[language] = self._expression_rule(language)
        return known

    def key_class(self, language: Node) -> str:
        # A bound on the length would cost a state for each character, and seconds of compiling: it is left out here.
        bound = tree.repeat(tree.ANY_CHAR, 0, self.solver.limits.max_key_length)
        if language == bound:
            language = tree.ANYTHING
        elif isinstance(language, tree.Both):
            language = tree.both(part for part in language.parts if part != bound)
        return super().key_class(language)

    def texts(self, texts: list[str], suffix: Node = tree.EPSILON) -> str:
        key = (tuple(texts), suffix)
        if key not in self._texts:
            end = "" if isinstance(suffix, tree.Epsilon) else f" {self._expression(suffix)}"
            self._texts[key] = self.rule("(" + " | ".join(map(_quoted, texts)) + ")" + end)
        return self._texts[key]

    def finish(self) -> str:
        return "\n".join(f"{name} ::= {body}" for name, body in self.rules.items()) + "\n"

    def _expression_rule(self, language: Node) -> str:
        return self.rule(self._expression(language))

    def _expression(self, node: Node) -> str:
        if isinstance(node, tree.Both | tree.Complement):
            return self._automaton(node)
        if isinstance(node, tree.Epsilon):
            return '""'
        if isinstance(node, tree.Chars):
            return _chars(node.chars)
        if isinstance(node, tree.Concat):
            return " ".join(self._parts(node.parts))
        if isinstance(node, tree.Either):
            return "(" + " | ".join(map(self._expression, node.parts)) + ")"
        if isinstance(node, tree.Repeat):
            split = _plain_and_other(node)
            if split is not None:
                # The same texts. Written so, xgrammar 0.2.9 fills a mask of 49,152 tokens in 8 us inside a JSON string;
                # with the escapes beside the plain characters, in one repetition, it takes 15 ms.
                plain, other = _chars(split[0].chars), self._expression(split[1])
                return f"{plain}* (({other}) {plain}*)*"
            inner = self._expression(node.part)
            if node.high is None and node.low <= 1:
                return f"({inner}){'*' if node.low == 0 else '+'}"
            return f"({inner}){{{node.low},{'' if node.high is None else node.high}}}"
        raise TypeError(f"unexpected {type(node).__name__}")

    def _parts(self, parts: tuple[Node, ...]) -> list[str]:
        written: list[str] = []
        text = ""
        for part in parts:
            if isinstance(part, tree.Chars) and len(part.chars) == 1 and part.chars[0][0] == part.chars[0][1]:
                text += chr(part.chars[0][0])
                continue
            if text:
                written.append(_quoted(text))
                text = ""
            written.append(self._expression(part))
        return [*written, _quoted(text)] if text else written

    def _automaton(self, node: Node) -> str:
        machine = determinise(node)
        if machine is None:
            raise UnenforceableError("this combination of patterns is too large for xgrammar")
        names = [self.reserve() for _ in machine.states]
        for name, state in zip(names, machine.states, strict=True):
            loops = [chars for chars, target in state.edges if names[target] == name]
            exits = [f"{_chars(chars)} {names[target]}" for chars, target in state.edges if names[target] != name]
            if state.is_final:
                exits.append('""')
            loop = f"{_chars(charset.union(*loops))}* " if loops else ""
            self.define(name, f"{loop}({' | '.join(exits)})")
        return names[0]


def _plain_and_other(node: tree.Repeat) -> tuple[tree.Chars, Node] | None:
    """The single characters and the longer alternatives of ``(plain | other)*``; ``None`` for another shape."""
    if node.low != 0 or node.high is not None or not isinstance(node.part, tree.Either):
        return None
    plain = [part for part in node.part.parts if isinstance(part, tree.Chars)]
    other = [part for part in node.part.parts if not isinstance(part, tree.Chars)]
    return (plain[0], tree.either(other)) if len(plain) == 1 and other else None


def _quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _chars(chars: CharSet) -> str:
    inverse = charset.complement(chars)
    is_negated = len(inverse) < len(chars)
    shown = inverse if is_negated else chars
    if not shown:
        return "[\\U00000000-\\U0010ffff]"
    members = "".join(_escaped(chr(a)) if a == b else f"{_escaped(chr(a))}-{_escaped(chr(b))}" for a, b in shown)
    return f"[{'^' if is_negated else ''}{members}]"


def _escaped(char: str) -> str:
    if char.isascii() and (char.isalnum() or char in " _,:;{}<>/"):
        return char
    code = ord(char)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"  # xgrammar reads \\x as far as digits go

"""Grammars in xgrammar's EBNF, which has no set operators: intersections and complements become automata."""

from __future__ import annotations

from constrained.json_schema.errors import UnenforceableError
from constrained.json_schema.prepared import JsonWhitespace
from constrained.json_schema.solving.solver import Solver
from constrained.json_schema.writing.writer import GrammarWriter
from constrained.patterns import charset, tree
from constrained.patterns.automaton import determinise
from constrained.patterns.charset import CharSet
from constrained.patterns.tree import Node

_MAX_WRITTEN_OUT = 127
"""Longest bound of a string: it gets a rule for each number of characters left. Each takes about 7 ms to compile over a
vocabulary of 49,152 tokens, unless another grammar had it. Without such rules a mask takes 0.3 s."""


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
            counted = next((i for i, part in enumerate(node.parts) if _is_counted_mixture(part)), None)
            if counted is not None:
                # What follows is a part of the last rules, so that masks do not depend on who uses them.
                rest = self._counted(node.parts[counted], tree.concat(node.parts[counted + 1 :]))
                return " ".join([*self._parts(node.parts[:counted]), rest])
            return " ".join(self._parts(node.parts))
        if isinstance(node, tree.Either):
            return "(" + " | ".join(map(self._expression, node.parts)) + ")"
        if isinstance(node, tree.Repeat):
            if _is_counted_mixture(node):
                return self._counted(node, tree.EPSILON)
            if node.low == 0 and node.high is None and _is_mixture(node.part):
                # The same texts. Written so, xgrammar 0.2.9 fills a mask of 49,152 tokens in 8 us inside a JSON string;
                # with the escapes beside the plain characters, in one repetition, it takes 15 ms.
                plain, other = self._mixture(node.part)
                return f"{plain}* ({other} {plain}*)*"
            inner = self._expression(node.part)
            if node.high is None and node.low <= 1:
                return f"({inner}){'*' if node.low == 0 else '+'}"
            return f"({inner}){{{node.low},{'' if node.high is None else node.high}}}"
        raise TypeError(f"unexpected {type(node).__name__}")

    def _counted(self, node: Node, tail: Node) -> str:
        """Symbol of a counted repetition of characters and escapes, and of what follows: a rule for each number left.

        xgrammar 0.2.9 knows the masks of such rules when they are compiled; of ``(plain | escape){0,40}`` it tries
        every token while it serves, for 100 ms and more. Seen from the end the rules of two lengths are the same, and
        so are compiled once (:meth:`constrained.engines.xgrammar_backend.XGrammarBackend.compile_common_rules`).
        """
        assert isinstance(node, tree.Repeat)
        plain, other = self._mixture(node.part)
        end = self._expression(tail)
        if node.high is None:
            following = self.rule(f"{plain}* ({other} {plain}*)* {end}")
        else:
            following = self.rule(end)
            for _ in range(node.high - node.low):
                following = self.rule(f"{plain} {following} | {other} {following} | {end}")
        for _ in range(node.low):
            following = self.rule(f"{plain} {following} | {other} {following}")
        return following

    def _mixture(self, part: Node) -> tuple[str, str]:
        """Single characters as a class, and the symbol of the longer alternatives."""
        assert isinstance(part, tree.Either)
        plain = next(one for one in part.parts if isinstance(one, tree.Chars))
        others = [one for one in part.parts if one is not plain]
        return _chars(plain.chars), self.rule(self._expression(tree.either(others)))

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


def _is_mixture(part: Node) -> bool:
    """Whether it is one character out of a class, or something longer: the characters of a JSON string."""
    return isinstance(part, tree.Either) and sum(isinstance(one, tree.Chars) for one in part.parts) == 1


def _is_counted_mixture(node: Node) -> bool:
    """A counted repetition of such characters."""
    if not isinstance(node, tree.Repeat) or not _is_mixture(node.part) or (node.low == 0 and node.high is None):
        return False
    bound = node.low if node.high is None else node.high
    if bound > _MAX_WRITTEN_OUT:
        raise UnenforceableError(
            f"a bound of {bound:,} characters (maxLength, minLength or a pattern's count) would hold up xgrammar, "
            f"which takes up to {_MAX_WRITTEN_OUT}: lower it, or leave grammar_backend out"
        )
    return True


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

"""What a structural tag is made of, before it is written as a grammar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from constrained.patterns import charset, tree
from constrained.patterns.automaton import determinise
from constrained.patterns.charset import CharSet
from constrained.patterns.derivative import nullable
from constrained.patterns.tree import Node

_MAX_STATES = 200
_FIRST_TOKEN = charset.LAST + 1


class NotExpressibleError(Exception):
    """llguidance's lexer cannot be made to read this structural tag exactly."""


@dataclass(frozen=True, eq=False)
class Text:
    """A text of a regular language: one lexeme."""

    language: Node
    excludes: tuple[str, ...] = ()
    """What the text never holds: where one of them follows, the text is over."""

    @cached_property
    def constant(self) -> str | None:
        """The text, where there is only one."""
        return constant_of(self.language)


@dataclass(frozen=True, eq=False)
class Value:
    """A JSON value, by the symbol of its rule."""

    symbol: str
    first: CharSet
    """What it may begin with."""
    extends: CharSet
    """What may go on with a text that is a value already: the digits of a number."""


@dataclass(frozen=True, eq=False)
class Grammar:
    """A text of a grammar with recursion, by the symbol of its rule; every character is a lexeme. Never empty."""

    symbol: str
    chars: CharSet
    """All that it may hold."""


@dataclass(frozen=True, eq=False)
class Token:
    """A special token."""

    token_id: int


@dataclass(frozen=True, eq=False)
class Concatenation:
    parts: tuple[Piece, ...]


@dataclass(frozen=True, eq=False)
class Choice:
    options: tuple[Piece, ...]


@dataclass(frozen=True, eq=False)
class Repeat:
    part: Piece
    low: int
    high: int | None


Piece = Text | Value | Grammar | Token | Concatenation | Choice | Repeat
Leaf = Text | Value | Grammar | Token

NOTHING_MORE = Concatenation(())


def constant(text: str) -> Piece:
    return Text(tree.literal(text)) if text else NOTHING_MORE


def sequence(parts: Iterable[Piece]) -> Piece:
    """The parts one after the other, without sequences inside sequences."""
    flat: list[Piece] = []
    for part in parts:
        flat += part.parts if isinstance(part, Concatenation) else (part,)
    return flat[0] if len(flat) == 1 else Concatenation(tuple(flat))


def choice(options: Iterable[Piece]) -> Piece:
    flat: list[Piece] = []
    for option in options:
        flat += option.options if isinstance(option, Choice) else (option,)
    if not flat:
        raise NotExpressibleError("a choice of nothing")
    return flat[0] if len(flat) == 1 else Choice(tuple(flat))


def repeat(part: Piece, low: int, high: int | None) -> Piece:
    if high == 0 or part is NOTHING_MORE:
        return NOTHING_MORE
    return part if (low, high) == (1, 1) else Repeat(part, low, high)


def is_nullable(piece: Piece) -> bool:
    if isinstance(piece, Text):
        return _facts(piece.language).is_nullable
    if isinstance(piece, Concatenation):
        return all(map(is_nullable, piece.parts))
    if isinstance(piece, Choice):
        return any(map(is_nullable, piece.options))
    return isinstance(piece, Repeat) and (piece.low == 0 or is_nullable(piece.part))


def first_of(piece: Piece) -> CharSet:
    """What the piece may begin with; special tokens count as characters beyond Unicode."""
    if isinstance(piece, Text):
        return _facts(piece.language).first
    if isinstance(piece, Value):
        return piece.first
    if isinstance(piece, Grammar):
        return piece.chars
    if isinstance(piece, Token):
        return ((_FIRST_TOKEN + piece.token_id, _FIRST_TOKEN + piece.token_id),)
    if isinstance(piece, Choice):
        return charset.union(*map(first_of, piece.options))
    if isinstance(piece, Repeat):
        return first_of(piece.part)
    return first_of_all(piece.parts)


def first_of_all(parts: Sequence[Piece]) -> CharSet:
    found: CharSet = charset.NONE
    for part in parts:
        found = charset.union(found, first_of(part))
        if not is_nullable(part):
            break
    return found


def extends_of(piece: Piece) -> CharSet:
    """Characters by which a text that is complete may still go on."""
    if isinstance(piece, Text):
        return _facts(piece.language).extends
    if isinstance(piece, Value):
        return piece.extends
    if isinstance(piece, Grammar | Token):
        return charset.NONE
    if isinstance(piece, Choice):
        return charset.union(*map(extends_of, piece.options))
    if isinstance(piece, Repeat):
        return extends_of(piece.part)
    found: CharSet = charset.NONE
    for part in reversed(piece.parts):
        found = charset.union(found, extends_of(part))
        if not is_nullable(part):
            break
    return found


def constant_of(language: Node) -> str | None:
    """The text of a language that holds one only."""
    if isinstance(language, tree.Epsilon):
        return ""
    parts = language.parts if isinstance(language, tree.Concat) else (language,)
    text = ""
    for part in parts:
        if not isinstance(part, tree.Chars) or len(part.chars) != 1 or part.chars[0][0] != part.chars[0][1]:
            return None
        text += chr(part.chars[0][0])
    return text


@dataclass(frozen=True)
class _Facts:
    is_nullable: bool
    first: CharSet
    extends: CharSet


@lru_cache(maxsize=2048)
def _facts(language: Node) -> _Facts:
    text = constant_of(language)
    if text is not None:
        return _Facts(not text, charset.of(text[:1]), charset.NONE)
    machine = determinise(language, _MAX_STATES)
    if machine is None:
        return _Facts(nullable(language), _possible_first(language), charset.ALL)
    start = machine.states[0]
    first = charset.union(charset.NONE, *(chars for chars, _ in start.edges))
    finals = [state for state in machine.states if state.is_final]
    extends = charset.union(charset.NONE, *(chars for state in finals for chars, _ in state.edges))
    return _Facts(start.is_final, first, extends)


def _possible_first(language: Node) -> CharSet:
    """At least what a text may begin with."""
    if isinstance(language, tree.Chars):
        return language.chars
    if isinstance(language, tree.Complement):
        return charset.ALL
    found: CharSet = charset.NONE
    for part in tree.children(language):
        found = charset.union(found, _possible_first(part))
        if isinstance(language, tree.Concat) and not nullable(part):
            break
    return found

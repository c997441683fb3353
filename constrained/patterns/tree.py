"""Trees of regular languages, with constructors that keep them small."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from constrained.patterns import charset
from constrained.patterns.charset import CharSet


@dataclass(frozen=True, slots=True)
class Node:
    """A regular language over Unicode scalar values."""


@dataclass(frozen=True, slots=True)
class Epsilon(Node):
    """The empty string alone."""


@dataclass(frozen=True, slots=True)
class Chars(Node):
    """One character out of a set; the empty set is the empty language."""

    chars: CharSet


@dataclass(frozen=True, slots=True)
class Concat(Node):
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either(Node):
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Both(Node):
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Complement(Node):
    """Every string of scalar values outside ``part``."""

    part: Node


@dataclass(frozen=True, slots=True)
class Repeat(Node):
    part: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class StartAnchor(Node):
    """``^``; resolved away before a tree leaves this package's parser."""


@dataclass(frozen=True, slots=True)
class EndAnchor(Node):
    """``$``; resolved away like :class:`StartAnchor`."""


@dataclass(frozen=True, slots=True)
class WordBoundary(Node):
    """``\\b`` or ``\\B``; resolved away like the anchors."""

    negative: bool


@dataclass(frozen=True, slots=True)
class LookAhead(Node):
    """``(?=…)`` or ``(?!…)``; resolved away like the anchors."""

    part: Node
    negative: bool


EPSILON = Epsilon()
NOTHING = Chars(charset.NONE)
ANY_CHAR = Chars(charset.ALL)
ANYTHING = Repeat(ANY_CHAR, 0, None)


def concat(parts: Iterable[Node]) -> Node:
    flat: list[Node] = []
    for part in parts:
        if part == NOTHING:
            return NOTHING
        if isinstance(part, Concat):
            flat += part.parts
        elif not isinstance(part, Epsilon) and not (part == ANYTHING and flat and flat[-1] == ANYTHING):
            flat.append(part)
    if len(flat) == 1:
        return flat[0]
    return Concat(tuple(flat)) if flat else EPSILON


def either(parts: Iterable[Node]) -> Node:
    flat: dict[Node, None] = {}
    chars: CharSet = charset.NONE
    for part in parts:
        for one in part.parts if isinstance(part, Either) else (part,):
            if isinstance(one, Chars):
                chars = charset.union(chars, one.chars) if chars else one.chars
            else:
                flat[one] = None
    if ANYTHING in flat:
        return ANYTHING
    if chars:
        flat[Chars(chars)] = None
    if not flat:
        return NOTHING
    return next(iter(flat)) if len(flat) == 1 else Either(tuple(flat))


def both(parts: Iterable[Node]) -> Node:
    flat: dict[Node, None] = {}
    for part in parts:
        for one in part.parts if isinstance(part, Both) else (part,):
            if one == NOTHING:
                return NOTHING
            if one != ANYTHING:
                flat[one] = None
    if not flat:
        return ANYTHING
    return next(iter(flat)) if len(flat) == 1 else Both(tuple(flat))


def complement(part: Node) -> Node:
    if isinstance(part, Complement):
        return part.part
    if part == NOTHING:
        return ANYTHING
    if part == ANYTHING:
        return NOTHING
    return Complement(part)


def repeat(part: Node, low: int, high: int | None) -> Node:
    if high == 0 or isinstance(part, Epsilon):
        return EPSILON
    if part == NOTHING:
        return EPSILON if low == 0 else NOTHING
    if low == 1 and high == 1:
        return part
    if isinstance(part, Repeat) and part.low == 0 and part.high is None and low <= 1:
        return part
    return Repeat(part, low, high)


def literal(text: str) -> Node:
    return concat(Chars(((ord(c), ord(c)),)) for c in text)


def literals(texts: Iterable[str]) -> Node:
    """Exactly the given strings."""
    nodes = list(dict.fromkeys(texts))
    single = [Chars(((ord(t), ord(t)),)) for t in nodes if len(t) == 1]
    rest = [literal(t) for t in nodes if len(t) != 1]
    return Either((*single, *rest)) if len(nodes) > 1 and not single else either([*single, *rest])


def has_set_operators(node: Node) -> bool:
    """Whether the tree holds an intersection or a complement, which plain regular expressions cannot write."""
    stack = [node]
    while stack:
        one = stack.pop()
        if isinstance(one, Both | Complement):
            return True
        stack += children(one)
    return False


def children(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Concat | Either | Both):
        return node.parts
    if isinstance(node, Complement | Repeat | LookAhead):
        return (node.part,)
    return ()


def expanded_size(node: Node) -> int:
    """Number of character positions with every counted repetition written out."""
    if isinstance(node, Repeat):
        return max(expanded_size(node.part), 1) * max(node.high or 0, node.low, 1)
    own = 1 if isinstance(node, Chars) else 0
    return own + sum(expanded_size(child) for child in children(node))

"""From a pattern that is searched for to the language of whole strings it accepts.

An assertion looks at its place and takes no character. A pattern is therefore read from its end: what a part and all
that comes after it may take is one language for each kind of place that the part can stand at, and an assertion leaves
of these languages what it allows there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from constrained.patterns import charset, tree
from constrained.patterns.charset import CharSet
from constrained.patterns.derivative import nullable
from constrained.patterns.parser import PatternUnsupportedError, parse
from constrained.patterns.tree import Node

_NO_WORD = charset.complement(charset.WORD)
_HERE: CharSet = ((-1, -1),)
"""A character outside Unicode, for a place in a language."""
_MAX_WRITTEN_OUT = 16
"""Most repetitions of a part with assertions: each is written out."""
_MAX_WORK = 300_000
"""Sizes of all languages on the way: alternatives with assertions multiply, since each has all that follows."""


@lru_cache(maxsize=512)
def search_language(pattern: str) -> Node:
    """Strings in which ``pattern`` matches somewhere, JSON Schema's meaning of ``pattern``.

    Raises
    ------
    PatternSyntaxError, PatternUnsupportedError
        See :func:`constrained.patterns.parser.parse`; also for most assertions inside a repetition.
    """
    return _Reader().read(tree.concat([tree.ANYTHING, parse(pattern)]), _everywhere(tree.ANYTHING)).at_start


@lru_cache(maxsize=512)
def full_language(pattern: str, dot_excludes: CharSet = charset.LINE_END, *, more_escapes: bool = False) -> Node:
    """Strings that ``pattern`` matches as a whole, whether or not it is anchored."""
    node = parse(pattern, dot_excludes=dot_excludes, more_escapes=more_escapes)
    return _Reader().read(node, _everywhere(tree.EPSILON)).at_start


class _Rest(NamedTuple):
    """What may stand from a place to the end of the string, by what is before that place."""

    at_start: Node
    after_word: Node
    """After a character of ``\\w``."""
    after_other: Node

    def map(self, change: Callable[[Node], Node]) -> _Rest:
        return _Rest(*map(change, self))


def _everywhere(language: Node) -> _Rest:
    return _Rest(language, language, language)


class _Reader:
    """Reads one pattern."""

    def __init__(self) -> None:
        self._work = 0
        self._sizes: dict[int, tuple[Node, int]] = {}

    def read(self, node: Node, rest: _Rest) -> _Rest:
        """``node``, then ``rest``."""
        if not _has_assertion(node):
            return _plain(node, rest)
        self._work += sum(map(self._size, rest))
        if self._work > _MAX_WORK:
            raise PatternUnsupportedError("the pattern has too many alternatives with assertions", 0)
        if isinstance(node, tree.StartAnchor):
            return _Rest(rest.at_start, tree.NOTHING, tree.NOTHING)
        if isinstance(node, tree.EndAnchor):
            return rest.map(lambda one: tree.EPSILON if nullable(one) else tree.NOTHING)
        if isinstance(node, tree.WordBoundary):
            return _at_boundary(node, rest)
        if isinstance(node, tree.LookAhead):
            wanted = self.read(node.part, _everywhere(tree.ANYTHING))
            if node.negative:
                wanted = wanted.map(tree.complement)
            return _Rest(*(tree.both(pair) for pair in zip(wanted, rest, strict=True)))
        if isinstance(node, tree.Concat):
            # Neighbours without assertions at once.
            runs = [(key, list(group)) for key, group in groupby(node.parts, _has_assertion)]
            for has_assertion, parts in reversed(runs):
                for part in reversed(parts) if has_assertion else [tree.concat(parts)]:
                    rest = self.read(part, rest)
            return rest
        if isinstance(node, tree.Either):
            return _either(self.read(part, rest) for part in node.parts)
        if isinstance(node, tree.Repeat):
            return self._repeat(node, rest)
        raise TypeError(f"unexpected {type(node).__name__}")

    def _repeat(self, node: tree.Repeat, rest: _Rest) -> _Rest:
        if max(node.low, node.high or 0) > _MAX_WRITTEN_OUT:
            raise PatternUnsupportedError(f"an assertion repeated more than {_MAX_WRITTEN_OUT} times", 0)
        if node.high is None:
            rest = self.read(self._any_number_of(node.part), rest)
        for _ in range((node.high or node.low) - node.low):
            rest = _either([rest, self.read(node.part, rest)])
        for _ in range(node.low):
            rest = self.read(node.part, rest)
        return rest

    def _size(self, node: Node) -> int:
        known = self._sizes.get(id(node))
        if known is None:
            known = self._sizes[id(node)] = (node, 1 + sum(map(self._size, tree.children(node))))
        return known[1]

    def _any_number_of(self, part: Node) -> Node:
        """``part*`` with assertions in its first and last turn alone.

        Only the first turn that takes something can be at the start of the string, and only the last at its end.
        """
        if _has(part, (tree.LookAhead, tree.WordBoundary)):
            raise PatternUnsupportedError("a look-ahead or word boundary inside a repetition is not supported", 0)
        open_ended = self.read(part, _everywhere(tree.Chars(_HERE))).map(_without_place)
        at_end = self.read(part, _everywhere(tree.EPSILON))
        first = tree.concat([tree.StartAnchor(), open_ended.at_start])
        last = tree.concat([at_end.after_other, tree.EndAnchor()])
        both = tree.concat([tree.StartAnchor(), at_end.at_start, tree.EndAnchor()])
        between = tree.repeat(open_ended.after_other, 0, None)
        return tree.either(
            [tree.concat([tree.either([tree.EPSILON, first]), between, tree.either([tree.EPSILON, last])]), both]
        )


def _has(node: Node, kinds: tuple[type[Node], ...]) -> bool:
    stack = [node]
    while stack:
        one = stack.pop()
        if isinstance(one, kinds):
            return True
        stack += tree.children(one)
    return False


def _has_assertion(node: Node) -> bool:
    return _has(node, (tree.StartAnchor, tree.EndAnchor, tree.WordBoundary, tree.LookAhead))


def _either(options: Iterable[_Rest]) -> _Rest:
    return _Rest(*(tree.either(languages) for languages in zip(*options, strict=True)))


def _plain(node: Node, rest: _Rest) -> _Rest:
    """``node``, which has no assertions, then ``rest``."""
    if rest.at_start == rest.after_word == rest.after_other:
        return _everywhere(tree.concat([node, rest.at_start]))
    is_nullable = nullable(node)
    if rest.after_word == rest.after_other:
        taken = _ending_in(node, charset.ALL) if is_nullable else node
        after = tree.concat([taken, rest.after_word])
    else:
        after = tree.either(
            [
                tree.concat([_ending_in(node, charset.WORD), rest.after_word]),
                tree.concat([_ending_in(node, _NO_WORD), rest.after_other]),
            ]
        )
    if not is_nullable:
        return _everywhere(after)
    if rest.after_word == rest.after_other:
        later = tree.concat([node, rest.after_word])
        return _Rest(tree.either([rest.at_start, after]), later, later)
    return rest.map(lambda one: tree.either([one, after]))


def _at_boundary(node: tree.WordBoundary, rest: _Rest) -> _Rest:
    def before(is_word: bool, language: Node) -> Node:
        if is_word:
            return _beginning_in(language, charset.WORD)
        return tree.either([_beginning_in(language, _NO_WORD), tree.EPSILON if nullable(language) else tree.NOTHING])

    return _Rest(
        before(not node.negative, rest.at_start),
        before(node.negative, rest.after_word),
        before(not node.negative, rest.after_other),
    )


def _ending_in(node: Node, chars: CharSet) -> Node:
    """Words of a language without set operators whose last character is one of ``chars``."""
    return _cut_to(node, chars, is_last=True)


def _beginning_in(node: Node, chars: CharSet) -> Node:
    """Words of a language whose first character is one of ``chars``."""
    if tree.has_set_operators(node):
        return tree.both([node, tree.concat([tree.Chars(chars), tree.ANYTHING])])
    return _cut_to(node, chars, is_last=False)


def _cut_to(node: Node, chars: CharSet, *, is_last: bool) -> Node:
    if isinstance(node, tree.Chars):
        return tree.Chars(charset.intersection(node.chars, chars))
    if isinstance(node, tree.Either):
        return tree.either(_cut_to(part, chars, is_last=is_last) for part in node.parts)
    if isinstance(node, tree.Concat):
        options: list[Node] = []
        order = range(len(node.parts))
        for index in reversed(order) if is_last else order:
            cut = _cut_to(node.parts[index], chars, is_last=is_last)
            # The parts on the other side are empty.
            others = node.parts[:index] if is_last else node.parts[index + 1 :]
            options.append(tree.concat([*others, cut] if is_last else [cut, *others]))
            if not nullable(node.parts[index]):
                break
        return tree.either(options)
    if isinstance(node, tree.Repeat):
        cut = _cut_to(node.part, chars, is_last=is_last)
        other = tree.repeat(node.part, max(node.low - 1, 0), None if node.high is None else node.high - 1)
        return tree.concat([other, cut] if is_last else [cut, other])
    return tree.NOTHING


def _without_place(node: Node) -> Node:
    """A language without the mark at the end of each word."""
    if isinstance(node, tree.Chars):
        if not charset.contains(node.chars, _HERE[0][0]):
            return node
        rest = tree.Chars(charset.difference(node.chars, _HERE))
        return tree.either([rest, tree.EPSILON])
    if isinstance(node, tree.Concat):
        return tree.concat(map(_without_place, node.parts))
    if isinstance(node, tree.Either):
        return tree.either(map(_without_place, node.parts))
    return node

"""Whether llguidance's lexer, which takes the longest lexeme, reads exactly the texts of a tag."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from constrained.patterns import charset, tree
from constrained.patterns.charset import CharSet
from constrained.patterns.derivative import derive, first_intervals, is_empty, nullable
from constrained.patterns.tree import Node
from constrained.structural_tags.pieces import (
    Choice,
    Grammar,
    Leaf,
    NotExpressibleError,
    Piece,
    Repeat,
    Text,
    Token,
    Value,
    extends_of,
    first_of,
    is_nullable,
)

_MAX_SETS = 20_000
_MAX_PAIRS = 400


def check_lexing(root: Piece) -> None:
    """Raise :class:`NotExpressibleError` where a lexeme might go on beyond the place where another begins.

    Lexemes that may begin at one place are read together. A word of one of them must not be the beginning of a longer
    word of any of them, unless what comes behind the word cannot begin like the longer word's rest.
    """
    follow: dict[int, dict[int, Leaf]] = {}
    first = _link([root], follow)
    queue: list[dict[int, Leaf]] = [first]
    seen = {frozenset(first)}
    for leaves in queue:  # grows while it is walked
        place = _Place(leaves.values())
        for group in _groups(leaves.values()):
            behind: dict[int, Leaf] = {}
            for leaf in group:
                behind |= follow.get(id(leaf), {})
            following = charset.union(*map(first_of, behind.values()))
            for leaf in group:
                place.check(leaf, following)
                if isinstance(leaf, Grammar):
                    # Inside the grammar, too, what follows it may stand beside its characters.
                    inner = charset.union(leaf.chars, following)
                    for one in (*behind.values(), *leaves.values()):
                        _check_beside(one, leaf, inner)
            key = frozenset(behind)
            if behind and key not in seen:
                seen.add(key)
                queue.append(behind)
                if len(seen) > _MAX_SETS:
                    raise NotExpressibleError("it has too many places")


def _link(parts: Sequence[Piece], follow: dict[int, dict[int, Leaf]]) -> dict[int, Leaf]:
    """First leaves of a sequence; notes for every leaf which may follow it."""
    return _Linker(follow).sequence(parts).first


class _Ends:
    """Leaves that may begin a piece, and that may end it."""

    __slots__ = ("first", "is_nullable", "last")

    def __init__(self, first: dict[int, Leaf], last: dict[int, Leaf], is_nullable: bool) -> None:
        self.first, self.last, self.is_nullable = first, last, is_nullable


class _Linker:
    def __init__(self, follow: dict[int, dict[int, Leaf]]) -> None:
        self._follow = follow
        self._known: dict[int, _Ends] = {}

    def sequence(self, parts: Sequence[Piece]) -> _Ends:
        ends = _Ends({}, {}, True)
        for part in parts:
            following = self._piece(part)
            self._connect(ends.last, following.first)
            ends = _Ends(
                {**ends.first, **following.first} if ends.is_nullable else ends.first,
                {**ends.last, **following.last} if following.is_nullable else following.last,
                ends.is_nullable and following.is_nullable,
            )
        return ends

    def _piece(self, piece: Piece) -> _Ends:
        known = self._known.get(id(piece))
        if known is None:
            known = self._known[id(piece)] = self._ends(piece)
        return known

    def _ends(self, piece: Piece) -> _Ends:
        if isinstance(piece, Text | Value | Grammar | Token):
            leaf = {id(piece): piece}
            return _Ends(leaf, leaf, is_nullable(piece))
        if isinstance(piece, Choice):
            options = [self._piece(option) for option in piece.options]
            first: dict[int, Leaf] = {}
            last: dict[int, Leaf] = {}
            for option in options:
                first |= option.first
                last |= option.last
            return _Ends(first, last, any(option.is_nullable for option in options))
        if isinstance(piece, Repeat):
            part = self._piece(piece.part)
            if piece.high != 1:
                self._connect(part.last, part.first)
            return _Ends(part.first, part.last, piece.low == 0 or part.is_nullable)
        return self.sequence(piece.parts)

    def _connect(self, last: dict[int, Leaf], first: dict[int, Leaf]) -> None:
        for key in last:
            known = self._follow.setdefault(key, {})
            known |= first


def _groups(leaves: Iterable[Leaf]) -> list[list[Leaf]]:
    """Leaves with a text in common stand together: the parser goes on behind all of them."""
    constants: dict[str, list[Leaf]] = {}
    tokens: dict[int, list[Leaf]] = {}
    patterns: list[tuple[Node, list[Leaf]]] = []
    values: list[Leaf] = []
    grammars: list[Leaf] = []
    for leaf in leaves:
        if isinstance(leaf, Token):
            tokens.setdefault(leaf.token_id, []).append(leaf)
        elif isinstance(leaf, Value):
            values.append(leaf)
        elif isinstance(leaf, Grammar):
            grammars.append(leaf)
        elif (text := leaf.constant) is not None:
            constants.setdefault(text, []).append(leaf)
        else:
            known = next((group for language, group in patterns if language == leaf.language), None)
            if known is None:
                patterns.append((leaf.language, [leaf]))
            else:
                known.append(leaf)
    groups = [*tokens.values(), *([values] if values else []), *([grammars] if grammars else [])]
    merged: list[tuple[list[Node], list[Leaf]]] = []
    for language, group in patterns:
        apart = [one for one in merged if not any(_may_share(language, other) for other in one[0])]
        joined = [one for one in merged if one not in apart]
        languages = [language, *(node for one in joined for node in one[0])]
        merged = [*apart, (languages, [*group, *(leaf for one in joined for leaf in one[1])])]
    for text, group in constants.items():
        owner = next((one for one in merged if any(_holds(node, text) for node in one[0])), None)
        if owner is None:
            groups.append(group)
        else:
            owner[1].extend(group)
    return groups + [group for _, group in merged]


def _may_share(one: Node, other: Node) -> bool:
    return is_empty(tree.both([one, other]), _MAX_PAIRS) is not True


def _holds(language: Node, text: str) -> bool:
    for char in text:
        language = derive(language, ord(char))
        if language == tree.NOTHING:
            return False
    return nullable(language)


class _Place:
    """Leaves that may begin at one place."""

    def __init__(self, leaves: Iterable[Leaf]) -> None:
        self.values: list[Value] = []
        self.texts: list[Text] = []
        self.patterns: list[Node] = []
        constants = set()
        for leaf in leaves:
            if isinstance(leaf, Value):
                self.values.append(leaf)
            elif isinstance(leaf, Text):
                self.texts.append(leaf)
                if leaf.constant is None:
                    self.patterns.append(leaf.language)
                else:
                    constants.add(leaf.constant)
        self.constants = sorted(constants)

    def check(self, leaf: Leaf, following: CharSet) -> None:
        """Raise where the lexer would not end ``leaf`` before a character of ``following``."""
        if isinstance(leaf, Value):
            # Values are read in the same JSON tokens, whichever schema they have; numbers go on in the same characters.
            if any(charset.intersection(value.extends, following) for value in self.values):
                raise NotExpressibleError("a number is followed by what may belong to it")
            if any(charset.intersection(leaf.first, first_of(text)) for text in self.texts):
                raise NotExpressibleError("a text begins like a JSON value beside it")
        elif isinstance(leaf, Text):
            if charset.intersection(extends_of(leaf), following):
                raise NotExpressibleError("free text is followed by what may belong to it")
            own = leaf.constant
            if own is None:
                for constant in self.constants:
                    _check_pair(leaf.language, tree.literal(constant), following)
            elif any(charset.contains(following, ord(c[len(own)])) for c in _continued(own, self.constants)):
                raise NotExpressibleError("a text is the beginning of another one beside it")
            for pattern in self.patterns:
                if pattern != leaf.language:
                    _check_pair(leaf.language, pattern, following)


def _check_beside(leaf: Leaf, grammar: Grammar, following: CharSet) -> None:
    """Raise where ``leaf`` may be taken for characters of the grammar: ``following`` may come behind one of these."""
    if isinstance(leaf, Grammar | Token) or not charset.intersection(first_of(leaf), grammar.chars):
        return
    text = leaf.constant if isinstance(leaf, Text) else None
    if text is None or len(text) < 2 or charset.contains(following, ord(text[1])):
        raise NotExpressibleError("a grammar stands beside what may begin with a character of it")


def _continued(text: str, ordered: Sequence[str]) -> Iterator[str]:
    """Those of the sorted texts that are longer than ``text`` and begin with it."""
    for one in ordered[bisect_right(ordered, text) :]:
        if not one.startswith(text):
            break
        yield one


def _check_pair(language: Node, other: Node, following: CharSet) -> None:
    """No word of ``language`` and a character that may follow it begin a word of ``other``."""
    seen = {(language, other)}
    queue = [(language, other)]
    for own, longer in queue:  # grows while it is walked
        for low, high in _common_intervals(own, longer):
            after = derive(longer, low)
            if after == tree.NOTHING:
                continue
            if nullable(own) and charset.intersection(following, ((low, high),)) and is_empty(after) is not True:
                raise NotExpressibleError("a text is the beginning of another one beside it")
            pair = (derive(own, low), after)
            if pair[0] == tree.NOTHING or pair in seen:
                continue
            seen.add(pair)
            queue.append(pair)
            if len(seen) > _MAX_PAIRS:
                raise NotExpressibleError("two patterns beside each other are too large to compare")


def _common_intervals(own: Node, other: Node) -> list[tuple[int, int]]:
    """Intervals of characters between which neither derivative changes."""
    lows = sorted({low for node in (own, other) for low, _ in first_intervals(node)})
    return [(low, after - 1) for low, after in pairwise([*lows, charset.LAST + 1])]

"""Puts free text and what ends it into one lexeme.

llguidance's lexer takes the longest lexeme. Free text would take the beginning of a call with it, so the text and the
trigger behind it become one: ``text*<tool_call>``, which ends where the trigger does.
"""

from __future__ import annotations

from collections.abc import Sequence

from constrained.patterns import charset, tree
from constrained.structural_tags.pieces import (
    NOTHING_MORE,
    Choice,
    Concatenation,
    NotExpressibleError,
    Piece,
    Repeat,
    Text,
    choice,
    constant,
    extends_of,
    first_of_all,
    repeat,
    sequence,
)

_MAX_NESTED = 6
_MAX_NESTED_STEPS = 64
"""Lexemes that stay open after one text behind them are seldom closed by many, and grow."""


class Fuser:
    """Rewrites pieces so that no lexeme goes on where the next one may begin, as far as it can."""

    def __init__(self) -> None:
        self._num_nested = 0
        self._depth = 0
        self._fused: dict[int, Piece] = {}

    def fuse(self, piece: Piece) -> Piece:
        known = self._fused.get(id(piece))
        if known is None:
            known = self._fused[id(piece)] = self._fuse(piece)
        return known

    def _fuse(self, piece: Piece) -> Piece:
        if isinstance(piece, Choice):
            return choice(map(self.fuse, piece.options))
        if isinstance(piece, Repeat):
            return repeat(self.fuse(piece.part), piece.low, piece.high)
        if isinstance(piece, Concatenation):
            rest: list[Piece] = []
            for part in reversed(piece.parts):
                rest = self._before(self.fuse(part), rest)
            return sequence(rest)
        return piece

    def _before(self, piece: Piece, rest: list[Piece]) -> list[Piece]:
        """``piece`` and the parts behind it, which are fused already."""
        if not rest or not charset.intersection(extends_of(piece), first_of_all(rest)):
            return [piece, *rest]
        if isinstance(piece, Text):
            self._num_nested += self._depth > 0
            if self._depth > _MAX_NESTED or self._num_nested > _MAX_NESTED_STEPS:
                raise NotExpressibleError("free text meets too many others")
            self._depth += 1
            try:
                return self._absorb(piece, rest)
            finally:
                self._depth -= 1
        if isinstance(piece, Concatenation):
            for part in reversed(piece.parts):
                rest = self._before(part, rest)
            return rest
        if isinstance(piece, Choice):
            return [choice(sequence(self._before(option, rest)) for option in piece.options)]
        if isinstance(piece, Repeat) and piece.low == 0 and piece.high == 1:
            return [choice([sequence(self._before(piece.part, rest)), sequence(rest)])]
        return [piece, *rest]  # it is checked later whether this can be read

    def _absorb(self, text: Text, rest: list[Piece]) -> list[Piece]:
        """``text`` with as much of what follows as makes its end certain."""
        head, tail = rest[0], rest[1:]
        if isinstance(head, Text):
            following = head.constant
            if following is None:
                return self._before(Text(tree.concat([text.language, head.language])), tail)
            size = _size_of_end(text, following)
            end = Text(tree.concat([text.language, tree.literal(following[:size])]))
            left = [constant(following[size:])] if size < len(following) else []
            return self._before(end, [*left, *tail])
        if isinstance(head, Concatenation):
            return self._absorb(text, [*head.parts, *tail]) if head.parts else self._before(text, tail)
        if isinstance(head, Choice):
            return [choice(self._absorb_choice(text, head.options, tail))]
        if isinstance(head, Repeat):
            high = None if head.high is None else head.high - 1
            more = sequence([head.part, repeat(head.part, max(head.low - 1, 0), high)])
            if head.low > 0:
                return self._before(text, [more, *tail])
            return [choice([sequence(self._before(text, [more, *tail])), sequence(self._before(text, tail))])]
        return [text, *rest]

    def _absorb_choice(self, text: Text, options: Sequence[Piece], tail: list[Piece]) -> list[Piece]:
        """Options that begin with the same end of the text share one lexeme."""
        groups: dict[str, list[Piece]] = {}
        others: list[Piece] = []
        for option in options:
            parts = option.parts if isinstance(option, Concatenation) else (option,)
            following = parts[0].constant if parts and isinstance(parts[0], Text) else None
            if not following:
                others.append(sequence(self._before(text, [option, *tail])))
                continue
            size = _size_of_end(text, following)
            rest = sequence([constant(following[size:]), *parts[1:]])
            groups.setdefault(following[:size], []).append(rest)
        found = []
        for end, rests in groups.items():
            lexeme = Text(tree.concat([text.language, tree.literal(end)]))
            behind = rests[0] if len(rests) == 1 else choice(rests)
            found.append(sequence(self._before(lexeme, [*([] if behind is NOTHING_MORE else [behind]), *tail])))
        return found + others


def _size_of_end(text: Text, following: str) -> int:
    """How much of a constant must follow the text to end it: all of it, or up to what the text cannot hold."""
    ends = [following.find(one) + len(one) for one in text.excludes if one in following]
    return min(ends, default=len(following))

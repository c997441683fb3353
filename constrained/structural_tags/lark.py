"""Writes a structural tag as one Lark grammar for llguidance."""

from __future__ import annotations

from collections.abc import Iterable

from constrained.json_schema.solving.shapes import ArrayShape, ConstantShape, NumberShape, ObjectShape, Shape
from constrained.json_schema.writing.lark import LarkWriter
from constrained.patterns import charset
from constrained.patterns.charset import CharSet
from constrained.structural_tags.fuse import Fuser
from constrained.structural_tags.lexing import check_lexing
from constrained.structural_tags.pieces import (
    Choice,
    Concatenation,
    Grammar,
    NotExpressibleError,
    Piece,
    Repeat,
    Text,
    Token,
    Value,
)

_NUMBER_FIRST, _NUMBER_MORE = charset.of("-0123456789"), charset.of("0123456789.eE+-")


def value_piece(symbol: str, shapes: Iterable[Shape]) -> Value:
    """The piece of a rule whose values have these shapes."""
    first: CharSet = charset.NONE
    extends: CharSet = charset.NONE
    for shape in shapes:
        if isinstance(shape, NumberShape):
            first, extends = charset.union(first, _NUMBER_FIRST), _NUMBER_MORE
        elif isinstance(shape, ConstantShape):
            first = charset.union(first, charset.of(shape.text[0]))
        else:
            opening = "{" if isinstance(shape, ObjectShape) else "[" if isinstance(shape, ArrayShape) else '"'
            first = charset.union(first, charset.of(opening))
    return Value(symbol, first, extends)


def write_tag(piece: Piece, writer: LarkWriter) -> str:
    """The grammar of a tag whose schemas ``writer`` has the rules of.

    Raises
    ------
    NotExpressibleError
        Where llguidance's lexer would read it differently.
    """
    try:
        fused = Fuser().fuse(piece)
        check_lexing(fused)
        writer.rules[writer.start] = _Writing(writer).body(fused)
    except RecursionError:
        raise NotExpressibleError("it is nested too deeply") from None
    return writer.finish()


class _Writing:
    def __init__(self, writer: LarkWriter) -> None:
        self._writer = writer
        self._symbols: dict[int, str] = {}

    def body(self, piece: Piece) -> str:
        if isinstance(piece, Concatenation):
            return " ".join(map(self._symbol, piece.parts)) or '""'
        if isinstance(piece, Choice):
            return " | ".join(map(self._symbol, piece.options))
        if isinstance(piece, Repeat):
            return self._symbol(piece.part) + _bounds(piece)
        return self._symbol(piece)

    def _symbol(self, piece: Piece) -> str:
        if isinstance(piece, Value | Grammar):
            return piece.symbol
        if isinstance(piece, Token):
            return f"<[{piece.token_id}]>"
        known = self._symbols.get(id(piece))
        if known is None:
            if isinstance(piece, Text):
                known = self._writer.token(piece.language)
            else:
                known = self._writer.rule(self.body(piece))
            self._symbols[id(piece)] = known
        return known


def _bounds(piece: Repeat) -> str:
    simple = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((piece.low, piece.high))
    return simple or f"{{{piece.low},{'' if piece.high is None else piece.high}}}"

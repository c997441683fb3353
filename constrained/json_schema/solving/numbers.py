"""Languages of JSON numbers between bounds, in plain decimal spelling.

The digit-by-digit constructions are the usual ones for ranges as regular expressions; a number has one integer part
without leading zeros, and trailing zeros behind the point do not change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from constrained.patterns import charset, tree
from constrained.patterns.language import full_language
from constrained.patterns.tree import Node

_DIGIT = tree.Chars(charset.DIGIT)
_NONZERO_DIGIT = tree.Chars(charset.normalise([(0x31, 0x39)]))
_MINUS = tree.literal("-")
_POINT = tree.literal(".")
_ZEROS = tree.repeat(tree.literal("0"), 0, None)
_NOT_WHOLE = full_language(r"-?(0|[1-9][0-9]*)\.0*[1-9][0-9]*")
_MAX_EXPONENT = 308
"""Of an IEEE 754 double: what is larger, readers of JSON turn into infinity."""
MAX_BOUND_DIGITS = 400

Digits = int | None
"""Most digits of a number that nothing bounds, before the point and again behind it; ``None``: any number of them."""


@dataclass(frozen=True)
class Bound:
    """One end of a range."""

    value: Decimal
    is_exclusive: bool = False


def spelled(value: Decimal | int, digits: Digits = None) -> str:
    """The number as short as it goes; with an exponent only where it has more than ``digits`` digits on a side."""
    text = format(Decimal(value), "f")
    if digits is not None and max(map(len, text.removeprefix("-").split("."))) > digits:
        return str(Decimal(value).normalize())
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def any_integer(digits: Digits) -> Node:
    """Every integer."""
    return full_language(rf"0|-?[1-9][0-9]{_times(digits, 1)}")


def any_number(digits: Digits) -> Node:
    """Every number; with ``digits``, none beyond the range of a double, whatever its exponent."""
    whole, fraction = rf"-?(0|[1-9][0-9]{_times(digits, 1)})", rf"(\.[0-9]{{1,{digits or ''}}})?"
    if digits is None:
        return full_language(rf"{whole}{fraction}([eE][+-]?0{{0,8}}[0-9]{{1,3}})?")
    zeros = tree.repeat(tree.literal("0"), 0, 8)
    positive = [tree.repeat(tree.literal("+"), 0, 1), zeros, _natural(0, _MAX_EXPONENT - digits, digits)]
    negative = [_MINUS, zeros, _natural(0, _MAX_EXPONENT, digits)]
    exponent = [tree.Chars(charset.of("eE")), tree.either([tree.concat(positive), tree.concat(negative)])]
    return tree.concat([full_language(whole + fraction), tree.repeat(tree.concat(exponent), 0, 1)])


def integers_between(low: int | None, high: int | None, digits: Digits = None) -> Node:
    """Integers of a closed range; ``None`` leaves an end open."""
    options: list[Node] = []
    if low is None or low < 0:
        most = None if low is None else -low
        least = 1 if high is None else max(1, -high)
        if most is None or least <= most:
            options.append(tree.concat([_MINUS, _natural(least, most, digits)]))
    if high is None or high >= 0:
        least = 0 if low is None else max(0, low)
        if high is None or least <= high:
            options.append(_natural(least, high, digits))
    return tree.either(options)


def numbers_between(low: Bound | None, high: Bound | None, digits: Digits = None) -> Node:
    """Decimal numbers of a range."""
    options: list[Node] = []
    zero = Bound(Decimal(0))
    if high is None or high.value > 0 or (high.value == 0 and not high.is_exclusive):
        least = zero if low is None or low.value < 0 else low
        largest = tree.ANYTHING if high is None else _at_most(high, digits)
        options.append(tree.both([_at_least(least, digits), largest]))
    if low is None or low.value < 0:
        least = Bound(Decimal(0), True) if high is None or high.value >= 0 else Bound(-high.value, high.is_exclusive)
        most = None if low is None else Bound(-low.value, low.is_exclusive)
        magnitude = tree.both([_at_least(least, digits), _at_most(most, digits) if most is not None else tree.ANYTHING])
        options.append(tree.concat([_MINUS, magnitude]))
    return tree.either(options)


def not_whole(language: Node) -> Node:
    """The members that are no integers."""
    return tree.both([language, _NOT_WHOLE])


def spellings(value: Decimal | int) -> Node:
    """Every plain spelling of one number, with zeros behind the point."""
    text = spelled(value)
    if text == "0":
        return full_language(r"-?0(\.0+)?")
    if "." in text:
        return tree.concat([tree.literal(text), _ZEROS])
    return tree.concat([tree.literal(text), full_language(r"(\.0+)?")])


def with_fractions(endings: list[str]) -> Node:
    """Numbers whose digits behind the point are one of ``endings`` (``""``: none), and zeros."""
    whole = full_language(r"-?(0|[1-9][0-9]*)")
    fractions = tree.concat([tree.either(tree.literal(f".{one}") for one in endings if one), _ZEROS])
    options = [fractions, full_language(r"(\.0+)?")] if "" in endings else [fractions]
    return tree.concat([whole, tree.either(options)])


def _times(digits: Digits, less: int = 0) -> str:
    return "*" if digits is None else f"{{0,{digits - less}}}"


def _digits(digits: Digits) -> Node:
    return tree.repeat(_DIGIT, 0, digits)


def _zeros(digits: Digits) -> Node:
    return tree.repeat(tree.literal("0"), 0, digits)


def _fraction(digits: Digits) -> Node:
    return tree.repeat(tree.concat([_POINT, tree.repeat(_DIGIT, 1, digits)]), 0, 1)


def _nonzero_digits(digits: Digits) -> Node:
    # One way to read each text: an automaton of counted digits on both sides would have a state for each set of ways.
    less = None if digits is None else digits - 1
    return tree.concat([_zeros(less), _NONZERO_DIGIT, _digits(less)])


def _natural(low: int, high: int | None, digits: Digits) -> Node:
    text = str(low)
    if high is None:
        # One more digit than the bound has, at least: the bound may be all there is of its length.
        rest = tree.repeat(_DIGIT, len(text), None if digits is None else max(digits - 1, len(text)))
        longer = tree.concat([_NONZERO_DIGIT, rest])
        same = _digits_at_least(text)
        return tree.either([same, longer])
    options: list[Node] = []
    for length in range(len(text), len(str(high)) + 1):
        least = text if length == len(text) else "1" + "0" * (length - 1)
        most = str(high) if length == len(str(high)) else "9" * length
        options.append(_same_length(least, most))
    return tree.either(options)


def _span(low: int, high: int) -> Node:
    return tree.Chars(((0x30 + low, 0x30 + high),)) if low <= high else tree.NOTHING


def _same_length(low: str, high: str) -> Node:
    if not low:
        return tree.EPSILON
    if set(low) == {"0"} and set(high) == {"9"}:
        return tree.repeat(_DIGIT, len(low), len(low))
    first_low, first_high = int(low[0]), int(high[0])
    if first_low == first_high:
        return tree.concat([_span(first_low, first_low), _same_length(low[1:], high[1:])])
    rest = len(low) - 1
    return tree.either(
        [
            tree.concat([_span(first_low, first_low), _digits_at_least(low[1:])]),
            tree.concat([_span(first_low + 1, first_high - 1), tree.repeat(_DIGIT, rest, rest)]),
            tree.concat([_span(first_high, first_high), _same_length("0" * rest, high[1:])]),
        ]
    )


def _digits_at_least(low: str) -> Node:
    """Digit strings of the same length that are not smaller."""
    return _same_length(low, "9" * len(low))


def _split(value: Decimal) -> tuple[int, str]:
    whole, _, fraction = spelled(value).partition(".")
    return int(whole), fraction


def _at_least(bound: Bound, digits: Digits) -> Node:
    whole, fraction = _split(bound.value)
    larger = tree.concat([_natural(whole + 1, None, digits), _fraction(digits)])
    if fraction:
        tail = tree.concat([_POINT, _fraction_at_least(fraction, bound.is_exclusive, digits)])
    elif bound.is_exclusive:
        tail = tree.concat([_POINT, _nonzero_digits(digits)])
    else:
        tail = _fraction(digits)
    return tree.either([larger, tree.concat([tree.literal(str(whole)), tail])])


def _fraction_at_least(fraction: str, is_exclusive: bool, digits: Digits) -> Node:
    node = _nonzero_digits(digits) if is_exclusive else _digits(digits)
    for digit in reversed(fraction):
        value = int(digit)
        larger = tree.concat([_span(value + 1, 9), _digits(digits)])
        node = tree.either([larger, tree.concat([_span(value, value), node])])
    return node


def _at_most(bound: Bound, digits: Digits) -> Node:
    whole, fraction = _split(bound.value)
    options: list[Node] = []
    if whole > 0:
        options.append(tree.concat([_natural(0, whole - 1, digits), _fraction(digits)]))
    if fraction:
        below = _fraction_at_most(fraction, bound.is_exclusive, digits)
        tail: Node = tree.either([tree.EPSILON, tree.concat([_POINT, below])])
    elif bound.is_exclusive:
        tail = tree.NOTHING
    else:
        tail = tree.repeat(tree.concat([_POINT, tree.repeat(tree.literal("0"), 1, digits)]), 0, 1)
    options.append(tree.concat([tree.literal(str(whole)), tail]))
    return tree.either(options)


def _fraction_at_most(fraction: str, is_exclusive: bool, digits: Digits) -> Node:
    node: Node = tree.NOTHING if is_exclusive else _zeros(digits)
    for index in range(len(fraction) - 1, -1, -1):
        value = int(fraction[index])
        options = [tree.concat([_span(0, value - 1), _digits(digits)]), tree.concat([_span(value, value), node])]
        if index > 0:
            options.append(tree.EPSILON)  # a shorter fraction is the smaller one: the last digit is never zero
        node = tree.either(options)
    return node

"""Terminals of number shapes."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor, gcd, lcm
from typing import TYPE_CHECKING

from constrained.json_schema.errors import UnenforceableError
from constrained.json_schema.solving import numbers
from constrained.json_schema.solving.finish import is_multiple
from constrained.json_schema.solving.numbers import Bound
from constrained.json_schema.solving.shapes import NumberShape
from constrained.patterns import tree
from constrained.patterns.derivative import is_empty
from constrained.patterns.tree import Node

if TYPE_CHECKING:
    from constrained.json_schema.writing.writer import GrammarWriter

_MAX_LISTED = 1_000
_MAX_PLACES = 3
_MAX_NATIVE_DIGITS = 15
"""llguidance takes bounds as 64-bit integers, and as doubles where there are fractions."""
_MAX_REMAINDERS = 10_000
"""llguidance keeps a lexer state for each remainder."""


def number_symbol(writer: GrammarWriter, shape: NumberShape) -> str | None:
    """Symbol of the numbers of a shape."""
    if shape.allowed is not None:
        return writer.texts([numbers.spelled(v) for v in shape.allowed])
    is_listed = (shape.multiples or shape.not_multiples) and shape.takes_integers and not shape.takes_fractions
    if is_listed:
        listed = _listed_integers(shape)
        if listed is not None:
            return writer.texts(listed) if listed else None
    if shape.not_multiples:
        raise UnenforceableError("the opposite of multipleOf cannot be enforced here", shape.pointer)
    digits = writer.solver.limits.number_digits
    language = _language(shape, digits)
    if language == tree.NOTHING:
        return None
    endings = [_endings(step) for step in shape.multiples]
    if all(one is not None for one in endings):
        parts = [language, *(numbers.with_fractions(one) for one in endings if one is not None)]
        return writer.token(tree.both(parts))
    return _native(writer, shape)


@lru_cache(maxsize=4_096)
def is_empty_number(shape: NumberShape, digits: numbers.Digits) -> bool:
    """Whether no number has the shape, as far as that is clear."""
    if shape.allowed is not None:
        return not shape.allowed
    if shape.multiples and not shape.excluded and not shape.not_multiples and shape.takes_integers:
        return not _has_multiple(shape)
    if shape.takes_integers and not shape.takes_fractions:
        listed = _listed_integers(shape)
        if listed is not None:
            return not listed
    endings = [_endings(step) for step in shape.multiples]
    parts = [numbers.with_fractions(one) for one in endings if one is not None]
    return is_empty(tree.both([_language(shape, digits), *parts])) is True


def _has_multiple(shape: NumberShape) -> bool:
    """Whether a multiple of all the steps, and of 1 among whole numbers, lies between the bounds."""
    if shape.low is None or shape.high is None:
        return True
    ratios = [one.as_integer_ratio() for one in shape.multiples]
    ratios += [(1, 1)] if not shape.takes_fractions else []
    step = Fraction(lcm(*(top for top, _ in ratios)), gcd(*(bottom for _, bottom in ratios)))
    low, high = Fraction(shape.low.value) / step, Fraction(shape.high.value) / step
    least = floor(low) + 1 if shape.low.is_exclusive else ceil(low)
    most = ceil(high) - 1 if shape.high.is_exclusive else floor(high)
    return least <= most


def _language(shape: NumberShape, digits: numbers.Digits) -> Node:
    is_bounded = shape.low is not None or shape.high is not None
    plain = is_bounded or shape.excluded or shape.multiples or not (shape.takes_integers and shape.takes_fractions)
    if shape.takes_integers and not shape.takes_fractions:
        low = None if shape.low is None else _least_integer(shape.low)
        high = None if shape.high is None else _greatest_integer(shape.high)
        language = numbers.integers_between(low, high, digits)
    elif plain:
        language = numbers.numbers_between(shape.low, shape.high, digits)
    else:
        language = numbers.any_number(digits)
    if not shape.takes_integers:
        language = numbers.not_whole(language)
    for value in shape.excluded:
        language = tree.both([language, tree.complement(numbers.spellings(value))])
    return language


def _least_integer(bound: Bound) -> int:
    whole = int(bound.value.to_integral_value(ROUND_CEILING))
    return whole + 1 if bound.is_exclusive and whole == bound.value else whole


def _greatest_integer(bound: Bound) -> int:
    whole = int(bound.value.to_integral_value(ROUND_FLOOR))
    return whole - 1 if bound.is_exclusive and whole == bound.value else whole


def _listed_integers(shape: NumberShape) -> list[str] | None:
    if shape.low is None or shape.high is None:
        return None
    low, high = _least_integer(shape.low), _greatest_integer(shape.high)
    step = int(shape.multiples[0]) if shape.multiples and shape.multiples[0] == int(shape.multiples[0]) else 1
    if (high - low) // step > _MAX_LISTED:
        return None
    first = low + (-low % step)
    found = []
    for value in range(first, high + 1, step):
        number = Decimal(value)
        fits = all(is_multiple(number, one) for one in shape.multiples)
        fits = fits and not any(is_multiple(number, one) for one in shape.not_multiples)
        if fits and number not in shape.excluded:
            found.append(str(value))
    return found


def _endings(step: Decimal) -> list[str] | None:
    """Digits behind the point, without zeros at the end, of the multiples; ``None`` where the rest matters too."""
    places = max(-int(step.normalize().as_tuple().exponent), 0)
    scale = 10**places
    factor = int(step * scale)
    if places > _MAX_PLACES or scale % factor:
        return None
    return [f"{value:0{places}}".rstrip("0") if places else "" for value in range(0, scale, factor)]


def _native(writer: GrammarWriter, shape: NumberShape) -> str:
    """llguidance's own number grammar, which knows remainders."""
    if shape.excluded or not shape.takes_integers:
        raise UnenforceableError("multipleOf cannot be enforced together with excluded numbers", shape.pointer)
    schema: dict[str, object] = {"type": "integer" if not shape.takes_fractions else "number"}
    whole = [int(step) for step in shape.multiples if step == step.to_integral_value()]
    if not shape.takes_fractions:
        # A whole number is a multiple of p/q, in lowest terms, exactly if it is one of p.
        whole = [step.as_integer_ratio()[0] for step in shape.multiples]
    if len(whole) == len(shape.multiples):
        schema["multipleOf"] = lcm(*whole)
        if lcm(*whole) > _MAX_REMAINDERS:
            raise UnenforceableError(f"multipleOf above {_MAX_REMAINDERS:,} cannot be enforced", shape.pointer)
    elif len(shape.multiples) == 1:
        schema["multipleOf"] = _json_number(shape.multiples[0])
    else:
        raise UnenforceableError("several multipleOf of fractions cannot be enforced together", shape.pointer)
    low, high = shape.low, shape.high
    digits = writer.solver.limits.number_digits
    if digits is not None:
        most = Bound(Decimal(10) ** min(digits, _MAX_NATIVE_DIGITS) - 1)
        least = Bound(-most.value)
        low, high = (
            least if low is None and (high is None or high.value > least.value) else low,
            most if high is None and (low is None or low.value < most.value) else high,
        )
    for bound, name in ((low, "inimum"), (high, "aximum")):
        if bound is not None:
            prefix = "m" if not bound.is_exclusive else "exclusiveM"
            schema[prefix + name] = _json_number(bound.value)
    return writer.remainders(schema, shape.pointer)


def _json_number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)

"""Sets of Unicode scalar values as sorted, disjoint, inclusive intervals."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache

CharSet = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
ALL: CharSet = ((0, 0xD7FF), (0xE000, LAST))
"""Every scalar value: surrogates cannot stand in UTF-8."""
NONE: CharSet = ()


def normalise(intervals: Iterable[tuple[int, int]]) -> CharSet:
    """Sort, merge and cut the surrogates out."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def union(*sets: CharSet) -> CharSet:
    return normalise(interval for one in sets for interval in one)


def complement(one: CharSet) -> CharSet:
    """Every scalar value not in ``one``."""
    return difference(ALL, one)


def difference(one: CharSet, other: CharSet) -> CharSet:
    result: list[tuple[int, int]] = []
    for low, high in one:
        start = low
        for other_low, other_high in other:
            if other_high < start:
                continue
            if other_low > high:
                break
            if other_low > start:
                result.append((start, other_low - 1))
            start = other_high + 1
        if start <= high:
            result.append((start, high))
    return tuple(result)


def intersection(one: CharSet, other: CharSet) -> CharSet:
    return difference(one, difference(one, other))


def contains(one: CharSet, code: int) -> bool:
    return any(low <= code <= high for low, high in one)


def of(text: str) -> CharSet:
    return normalise((ord(c), ord(c)) for c in text)


DIGIT = normalise([(0x30, 0x39)])
WORD = normalise([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
LINE_END = of("\n\r\u2028\u2029")
SPACE = union(of("\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"), normalise([(0x2000, 0x200A)]))
"""ECMA-262's WhiteSpace and LineTerminator."""

_LONG_CATEGORIES = {
    "Letter": "L",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm",
    "Other_Letter": "Lo",
    "Mark": "M",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Letter_Number": "Nl",
    "Other_Number": "No",
    "Punctuation": "P",
    "punct": "P",
    "Symbol": "S",
    "Currency_Symbol": "Sc",
    "Math_Symbol": "Sm",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Other": "C",
    "Control": "Cc",
    "cntrl": "Cc",
}


@lru_cache(maxsize=64)
def category(name: str) -> CharSet | None:
    """Scalar values of a Unicode general category (``L``, ``Lu``, ``Letter``); ``None`` for any other property."""
    name = name.removeprefix("General_Category=").removeprefix("gc=")
    short = _LONG_CATEGORIES.get(name, name)
    if short == "Any":
        return ALL
    if short == "ASCII":
        return ((0, 0x7F),)
    if len(short) not in (1, 2) or short[0] not in "LMNPSZC" or not short.isalpha():
        return None
    codes = (code for low, high in ALL for code in range(low, high + 1))
    return normalise((c, c) for c in codes if unicodedata.category(chr(c)).startswith(short)) or None

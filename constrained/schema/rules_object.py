"""Rules of object shapes: declared properties in order, undeclared ones behind them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from constrained.schema.errors import UnenforceableError
from constrained.schema.shapes import ObjectShape

if TYPE_CHECKING:
    from constrained.schema.writer import GrammarWriter

_MAX_COUNTED_STATES = 20_000
_MAX_NEEDED_COUNT = 24


@dataclass(frozen=True)
class _Pair:
    symbols: str
    is_required: bool


@dataclass(frozen=True)
class Segment:
    """Between ``low`` and ``high`` of one symbol."""

    symbol: str
    low: int
    high: int | None


def separated(comma: str, segments: list[Segment], *, is_first: bool) -> list[str]:
    """Alternatives of the segments' items, each item behind a comma; without the first comma if ``is_first``."""
    if not is_first:
        return [" ".join(_repeated(comma, one) for one in segments if one.high != 0)]
    if not segments:
        return [""]
    head, rest = segments[0], segments[1:]
    options: list[str] = []
    if head.high is None or head.high > 0:
        less = Segment(head.symbol, max(head.low - 1, 0), None if head.high is None else head.high - 1)
        options.append(f"{head.symbol} {separated(comma, [less, *rest], is_first=False)[0]}".strip())
    if head.low == 0:
        options += separated(comma, rest, is_first=True)
    return options


def _repeated(comma: str, one: Segment) -> str:
    if (one.low, one.high) == (1, 1):
        return f"{comma} {one.symbol}"
    bounds = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((one.low, one.high))
    if bounds is None:
        bounds = f"{{{one.low},{'' if one.high is None else one.high}}}"
    return f"({comma} {one.symbol}){bounds}"


def object_body(writer: GrammarWriter, shape: ObjectShape) -> str | None:
    """Alternatives of an object shape; ``None`` when a required property can have no value."""
    solver = writer.solver
    pairs: list[_Pair] = []
    for one in shape.properties:
        if solver.is_inhabited(one.goal):
            pairs.append(_Pair(f"{writer.declared_key(one.name)} {writer.value(one.goal)}", one.is_required))
        elif one.is_required:
            return None
    classes = [one for one in shape.extra if solver.is_inhabited(one.goal)]
    extra = " | ".join(f"{writer.key_class(one.language)} {writer.value(one.goal)}" for one in classes)
    if not all(solver.is_inhabited(one.goal) for one in shape.needed_extra):
        return None
    needed = [writer.rule(f"{writer.key_class(one.language)} {writer.value(one.goal)}") for one in shape.needed_extra]
    return _Members(writer, shape, pairs, extra and writer.rule(extra), needed).body()


class _Members:
    """The members of one object, counted only as far as its bounds ask."""

    def __init__(
        self, writer: GrammarWriter, shape: ObjectShape, pairs: list[_Pair], extra: str, needed: list[str]
    ) -> None:
        self.writer = writer
        self.pairs = pairs
        self.extra = extra
        self.needed = needed
        self.pointer = shape.pointer
        required = sum(one.is_required for one in pairs) + len(needed)
        self.low = shape.min_properties if shape.min_properties > required else 0
        self.high = shape.max_properties
        if self.high is not None and not extra and self.high >= len(pairs):
            self.high = None
        self.tails: dict[tuple[int, int], str | None] = {}
        counted = max(self.low, self.high or 0)
        if counted * len(pairs) > _MAX_COUNTED_STATES:
            raise UnenforceableError("minProperties or maxProperties on so many properties", shape.pointer)
        if self.low > 1 and extra:
            # A context-free grammar cannot compare keys that it does not know beforehand.
            writer.solver.notice(shape.pointer, "a repeated undeclared key counts each time towards minProperties")

    def count(self, count: int) -> int:
        """Counts that no bound tells apart are one."""
        return min(count, self.low) if self.high is None else count

    def body(self) -> str | None:
        writer = self.writer
        options: list[str] = []
        for index, pair in enumerate(self.pairs):
            tail = self.tail(index + 1, self.count(1))
            if tail is not None:
                options.append(f"{pair.symbols} {tail}".strip())
            if pair.is_required:
                break
        else:
            options += [one for one in self.extras(0, is_first=True) or [] if one]
        body = []
        if options:
            members = options[0] if len(options) == 1 else writer.rule(" | ".join(options))
            body.append(f"{writer.open_object} {members} {writer.close_object}")
        if self.low == 0 and not self.needed and not any(one.is_required for one in self.pairs):
            body.append(writer.empty_object)
        return " | ".join(body) or None

    def tail(self, start: int, count: int) -> str | None:
        """Symbol of what may follow once ``count`` members stand before property ``start``; ``""`` for nothing."""
        if self.high is not None and count > self.high:
            return None
        if (start, count) in self.tails:
            return self.tails[(start, count)]
        # Built from the end, so that no property list is too long for the stack.
        for index in range(len(self.pairs), start - 1, -1):
            counts = range(count, count + index - start + 1) if self.low or self.high is not None else (0,)
            for one in sorted({self.count(c) for c in counts}):
                if (index, one) not in self.tails:
                    self.tails[(index, one)] = self._tail(index, one)
        return self.tails[(start, count)]

    def _tail(self, index: int, count: int) -> str | None:
        writer = self.writer
        if self.high is not None and count > self.high:
            return None
        if index == len(self.pairs):
            options = self.extras(count, is_first=False)
            if options is None:
                return None
            return writer.rule(" | ".join(one or '""' for one in options)) if any(options) else ""
        pair = self.pairs[index]
        following = self.count(count + 1)
        if (index + 1, following) not in self.tails:
            self.tails[(index + 1, following)] = self._tail(index + 1, following)
        taken = self.tails[(index + 1, following)]
        with_pair = None if taken is None else f"{writer.comma} {pair.symbols} {taken}".strip()
        if pair.is_required:
            return None if with_pair is None else writer.rule(with_pair)
        skipped = self.tails[(index + 1, count)]
        if with_pair is None:
            return skipped
        if skipped is None:
            return writer.rule(with_pair)
        if skipped == taken:
            return writer.rule(f"({writer.comma} {pair.symbols})? {taken}".strip())
        return writer.rule(f"{with_pair} | {skipped or chr(34) * 2}")

    def extras(self, count: int, *, is_first: bool) -> list[str] | None:
        """Alternatives of the undeclared members; ``None`` when the bounds cannot be met."""
        low = max(self.low - count, 0)
        high = None if self.high is None else self.high - count
        if not self.extra:
            return None if low > 0 or self.needed else [""]
        if not self.needed:
            if high is not None and low > high:
                return None
            return separated(self.writer.comma, [Segment(self.extra, low, high)], is_first=is_first)
        return self._extras_with_needed(low, high, is_first=is_first)

    def _extras_with_needed(self, low: int, high: int | None, *, is_first: bool) -> list[str] | None:
        """Needed keys in their order, others between them, counted where a bound asks."""
        count = len(self.needed)
        if high is not None and high < max(low, count):
            return None
        if max(low, high or 0) > _MAX_NEEDED_COUNT:
            raise UnenforceableError("a bound on the number of properties this large", self.pointer)
        options: list[str] = []
        # ``spare`` others are spread over the gaps before and behind the needed keys.
        spares = range(max(low - count, 0), (max(low - count, 0) if high is None else high - count) + 1)
        for spare in spares:
            for gaps in _spread(spare, count + 1):
                segments: list[Segment] = []
                for gap, needed in zip(gaps, [*self.needed, ""], strict=True):
                    segments.append(Segment(self.extra, gap, None if high is None else gap))
                    if needed:
                        segments.append(Segment(needed, 1, 1))
                options += separated(self.writer.comma, segments, is_first=is_first)
        if len(options) > _MAX_COUNTED_STATES:
            raise UnenforceableError("so many ways to place the keys that must exist", self.pointer)
        return options


def _spread(total: int, places: int) -> Iterator[tuple[int, ...]]:
    if places == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _spread(total - first, places - 1):
            yield (first, *rest)

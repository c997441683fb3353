"""Rules of object shapes: declared properties in order, undeclared ones behind them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from constrained.json_schema.errors import UnenforceableError
from constrained.json_schema.solving.object_machine import Move, ObjectMachine, State
from constrained.json_schema.solving.shapes import Goal, ObjectShape

if TYPE_CHECKING:
    from constrained.json_schema.writing.writer import GrammarWriter

_MAX_COUNTED_STATES = 20_000
_MAX_NEEDED_COUNT = 24


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
    """Alternatives of an object shape; ``None`` when it holds no object."""
    machine = _machine(writer, shape)
    if max(machine.low, machine.high or 0) * len(shape.properties) > _MAX_COUNTED_STATES:
        raise UnenforceableError("minProperties or maxProperties on so many properties", shape.pointer)
    if not machine.is_possible:
        return None
    classes = [one for one in shape.extra if writer.solver.is_inhabited(one.goal)]
    extra = " | ".join(f"{writer.key_class(one.language)} {writer.value(one.goal)}" for one in classes)
    needed = [writer.rule(f"{writer.key_class(one.language)} {writer.value(one.goal)}") for one in shape.needed_extra]
    return _Members(writer, machine, extra and writer.rule(extra), needed).body()


def _machine(writer: GrammarWriter, shape: ObjectShape) -> ObjectMachine:
    """Lenient, without the last conditions where all are too many."""
    while True:
        try:
            return ObjectMachine(shape, writer.solver.is_inhabited)
        except UnenforceableError as error:
            if not shape.conditions:
                raise
            kept = len(shape.conditions) // 2
            for one in shape.conditions[kept:]:
                writer.solver.give_up(UnenforceableError(error.message, one.pointer))
            shape = replace(shape, conditions=shape.conditions[:kept])


class _Members:
    """The members of one object."""

    def __init__(self, writer: GrammarWriter, machine: ObjectMachine, extra: str, needed: list[str]) -> None:
        self.writer = writer
        self.machine = machine
        self.properties = machine.shape.properties
        self.extra = extra
        self.needed = needed
        self.pointer = machine.shape.pointer
        if machine.low > 1 and extra:
            # A context-free grammar cannot compare keys that it does not know beforehand.
            writer.solver.notice(self.pointer, "a repeated undeclared key counts each time towards minProperties")

    def body(self) -> str | None:
        writer = self.writer
        tails = self._tails()
        options: list[str] = []
        state: State | None = self.machine.start
        for index in range(len(self.properties)):
            if state is not None:
                move = self.machine.layers[index][state]
                options += self._taken(index, move, tails[index + 1])
                state = move.skipped
        body = []
        if state is not None:
            options += [one for one in self.extras(state, is_first=True) if one]
            if not self.needed and self.machine.low == 0:
                body.append(writer.empty_object)
        if options:
            members = options[0] if len(options) == 1 else writer.rule(" | ".join(options))
            body.insert(0, f"{writer.open_object} {members} {writer.close_object}")
        return " | ".join(body) or None

    def _tails(self) -> dict[int, dict[State, str]]:
        """Symbols of what may follow, by the property before which a state is; ``""`` for nothing.

        Built from the end, so that no property list is too long for the stack.
        """
        last: dict[State, str] = {}
        for state in self.machine.layers[-1]:
            options = self.extras(state, is_first=False)
            last[state] = self.writer.rule(" | ".join(one or '""' for one in options)) if any(options) else ""
        tails = {len(self.properties): last}
        for index in range(len(self.properties) - 1, 0, -1):
            moves = self.machine.layers[index].items()
            tails[index] = {state: self._tail(index, move, tails[index + 1]) for state, move in moves}
        return tails

    def _tail(self, index: int, move: Move, after: dict[State, str]) -> str:
        writer = self.writer
        taken = self._taken(index, move, after)
        if move.skipped is None:
            return writer.rule(" | ".join(f"{writer.comma} {one}" for one in taken))
        skipped = after[move.skipped]
        if not taken:
            return skipped
        if len(taken) == 1 and after[move.taken[0][1]] == skipped:
            return writer.rule(f"({writer.comma} {self._pair(index, move.taken[0][0])})? {skipped}".strip())
        return writer.rule(" | ".join([*(f"{writer.comma} {one}" for one in taken), skipped or '""']))

    def _taken(self, index: int, move: Move, after: dict[State, str]) -> list[str]:
        return [f"{self._pair(index, goal)} {after[state]}".strip() for goal, state in move.taken]

    def _pair(self, index: int, goal: Goal) -> str:
        return f"{self.writer.declared_key(self.properties[index].name)} {self.writer.value(goal)}"

    def extras(self, state: State, *, is_first: bool) -> list[str]:
        """Alternatives of the undeclared members behind the properties."""
        room = self.machine.room(state)
        if room is None:
            return []
        low, high = room
        if not self.extra:
            return [""]
        if not self.needed:
            return separated(self.writer.comma, [Segment(self.extra, low, high)], is_first=is_first)
        return self._extras_with_needed(low, high, is_first=is_first)

    def _extras_with_needed(self, low: int, high: int | None, *, is_first: bool) -> list[str]:
        """Needed keys in their order, others between them, counted where a bound asks."""
        count = len(self.needed)
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

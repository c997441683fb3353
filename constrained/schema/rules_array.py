"""Rules of array shapes, among them counted ``contains`` and arrays of distinct listed values."""

from __future__ import annotations

import json
from itertools import combinations, product
from typing import TYPE_CHECKING

from constrained.schema.errors import UnenforceableError
from constrained.schema.finish import goal_of
from constrained.schema.numbers import spelled
from constrained.schema.pattern.derivative import finite_strings
from constrained.schema.rules_object import Segment, separated
from constrained.schema.shapes import (
    ArrayShape,
    ConstantShape,
    Contains,
    Goal,
    Literal,
    NumberShape,
    StringShape,
)

if TYPE_CHECKING:
    from constrained.schema.writer import GrammarWriter

_MAX_STATES = 3_000
_MAX_DISTINCT = 60
"""llguidance's parametric rules carry 64 bits."""


def array_body(writer: GrammarWriter, shape: ArrayShape) -> str | None:
    """Alternatives of an array shape; ``None`` when it holds no array."""
    solver = writer.solver
    prefix = list(shape.prefix)
    rest = shape.rest if shape.rest is not None and solver.is_inhabited(shape.rest) else None
    possible = next((i for i, goal in enumerate(prefix) if not solver.is_inhabited(goal)), None)
    if possible is not None:
        prefix, rest = prefix[:possible], None
    high = shape.max_items
    if rest is None:
        high = len(prefix) if high is None else min(high, len(prefix))
    if high is not None and shape.min_items > high:
        return None
    trimmed = ArrayShape(
        tuple(prefix),
        rest,
        shape.min_items,
        high,
        shape.contains,
        shape.is_unique and high not in (0, 1),
        shape.pointer,
    )
    for is_asked, write in ((trimmed.is_unique, _distinct), (bool(trimmed.contains), _counted)):
        try:
            if is_asked:
                return write(writer, trimmed)
        except UnenforceableError as error:
            writer.solver.give_up(error)
    return _plain(writer, trimmed)


def _plain(writer: GrammarWriter, shape: ArrayShape) -> str | None:
    symbols = [writer.value(goal) for goal in shape.prefix]
    length = len(symbols)
    tail = ""
    if shape.rest is not None:
        high = None if shape.max_items is None else shape.max_items - length
        segment = Segment(writer.value(shape.rest), max(shape.min_items - length, 0), high)
        if not symbols:
            options = [one for one in separated(writer.comma, [segment], is_first=True) if one]
            body = [f"{writer.open_array} {one} {writer.close_array}" for one in options]
            return " | ".join(body + ([writer.empty_array] if shape.min_items == 0 else [])) or None
        tail = separated(writer.comma, [segment], is_first=False)[0]
    for index in range(length - 1, 0, -1):
        item = f"{writer.comma} {symbols[index]} {tail}".strip()
        tail = writer.rule(item) if index < shape.min_items else writer.rule(f'{item} | ""')
    body = [f"{writer.open_array} {symbols[0]} {tail} {writer.close_array}"] if symbols else []
    return " | ".join(body + ([writer.empty_array] if shape.min_items == 0 else [])) or None


def _counted(writer: GrammarWriter, shape: ArrayShape) -> str | None:
    """An automaton over (position, members of each ``contains`` so far), both only as far as they matter."""
    machine = _Counter(writer, shape)
    options = []
    for symbol, after in machine.transitions(machine.start):
        state = machine.state(after)
        options.append(f"{writer.open_array} {symbol} {state} {writer.close_array}")
    machine.finish()
    if machine.is_final(machine.start):
        options.append(writer.empty_array)
    return " | ".join(options) or None


_State = tuple[int, tuple[int, ...]]


class _Counter:
    def __init__(self, writer: GrammarWriter, shape: ArrayShape) -> None:
        self.writer = writer
        self.shape = shape
        self.contains = shape.contains
        starts = max((one.start for one in self.contains), default=0)
        self.bound = max(len(shape.prefix), starts, shape.min_items)
        if shape.max_items is not None:
            self.bound = shape.max_items
        self.caps = tuple(one.low if one.high is None else one.high + 1 for one in self.contains)
        size = self.bound + 1
        for cap in self.caps:
            size *= cap + 1
        if size > _MAX_STATES:
            raise UnenforceableError("contains on an array this long", self.contains[0].pointer)
        self.start: _State = (0, (0,) * len(self.contains))
        self.names: dict[_State, str] = {}
        self.pending: list[_State] = []

    def is_final(self, state: _State) -> bool:
        position, hits = state
        enough = all(hit >= one.low for hit, one in zip(hits, self.contains, strict=True))
        return enough and position >= self.shape.min_items

    def state(self, state: _State) -> str:
        if state not in self.names:
            self.names[state] = self.writer.reserve()
            self.pending.append(state)
        return self.names[state]

    def finish(self) -> None:
        while self.pending:
            state = self.pending.pop()
            loops, exits = [], ['""'] if self.is_final(state) else []
            for symbol, after in self.transitions(state):
                if after == state:
                    loops.append(symbol)
                else:
                    exits.append(f"{self.writer.comma} {symbol} {self.state(after)}")
            loop = f"({self.writer.comma} ({' | '.join(loops)}))* " if loops else ""
            # A state without a way out still needs a body; nothing leads from it to an accepted text.
            body = " | ".join(exits) if exits else f"{self.writer.comma} {self.names[state]}"
            self.writer.define(self.names[state], f"{loop}({body})" if loop else body)

    def transitions(self, state: _State) -> list[tuple[str, _State]]:
        position, hits = state
        if self.shape.max_items is not None and position >= self.shape.max_items:
            return []
        is_prefix = position < len(self.shape.prefix)
        base = self.shape.prefix[position] if is_prefix else self.shape.rest
        if base is None:
            return []
        found = []
        for choice in product((False, True), repeat=len(self.contains)):
            goal, after = base, list(hits)
            possible = True
            for index, (is_hit, one) in enumerate(zip(choice, self.contains, strict=True)):
                if position < one.start:
                    possible = possible and not is_hit
                elif is_hit:
                    goal |= one.goal
                    after[index] = min(hits[index] + 1, self.caps[index])
                    possible = possible and (one.high is None or after[index] <= one.high)
                elif one.high is not None:
                    goal |= _opposite(one)
            if possible and self.writer.solver.is_inhabited(goal_of(goal)):
                next_state = (min(position + 1, self.bound), tuple(after))
                if not _is_covered(choice, hits, self.caps):
                    found.append((self.writer.value(goal_of(goal)), next_state))
        return found


def _is_covered(choice: tuple[bool, ...], hits: tuple[int, ...], caps: tuple[int, ...]) -> bool:
    """A further hit of a count that is already full changes nothing."""
    return any(is_hit and hit >= cap for is_hit, hit, cap in zip(choice, hits, caps, strict=True))


def _opposite(one: Contains) -> Goal:
    if len(one.goal) != 1:
        raise UnenforceableError("an upper bound on several schemas at once", one.pointer)
    (literal,) = one.goal
    return frozenset({Literal(literal.node, not literal.is_positive)})


def _distinct(writer: GrammarWriter, shape: ArrayShape) -> str | None:
    if shape.contains:
        raise UnenforceableError("uniqueItems together with contains cannot be enforced", shape.pointer)
    goals = list(shape.prefix) + ([shape.rest] if shape.rest is not None else [])
    if shape.rest is None and all(not writer.solver.is_inhabited(one | other) for one, other in combinations(goals, 2)):
        return _plain(writer, shape)
    values = _listed(writer, goals[0]) if len(goals) == 1 else None
    if values is None or shape.prefix:
        raise UnenforceableError(
            f"uniqueItems can be enforced for at most {_MAX_DISTINCT} listed item values, or where maxItems is 1",
            shape.pointer,
        )
    count = len(values)
    if shape.min_items > count:
        return None
    high = count if shape.max_items is None else min(count, shape.max_items)
    return writer.distinct(values, shape.min_items, high, shape.pointer)


def _listed(writer: GrammarWriter, goal: Goal) -> list[str] | None:
    """Texts of the values of a goal, when they are few and scalar."""
    texts: list[str] = []
    for shape in writer.solver.shapes(goal):
        if isinstance(shape, ConstantShape):
            texts.append(shape.text)
        elif isinstance(shape, NumberShape) and shape.allowed is not None:
            texts += [spelled(value) for value in shape.allowed]
        elif isinstance(shape, StringShape):
            strings = shape.allowed
            if strings is None:
                found = finite_strings(shape.language, _MAX_DISTINCT)
                if found is None:
                    return None
                strings = tuple(found)
            texts += [json.dumps(one, ensure_ascii=False) for one in strings]
        else:
            return None
        if len(texts) > _MAX_DISTINCT:
            return None
    return list(dict.fromkeys(texts))

"""Rules of array shapes, among them counted ``contains`` and arrays of distinct listed values."""

from __future__ import annotations

import json
from itertools import combinations
from typing import TYPE_CHECKING

from constrained.json_schema.errors import UnenforceableError
from constrained.json_schema.solving.array_machine import ArrayMachine
from constrained.json_schema.solving.numbers import spelled
from constrained.json_schema.solving.shapes import ArrayShape, ConstantShape, Goal, NumberShape, StringShape
from constrained.json_schema.writing.rules_object import Segment, separated
from constrained.patterns.derivative import finite_strings

if TYPE_CHECKING:
    from constrained.json_schema.solving.solver import Solver
    from constrained.json_schema.writing.writer import GrammarWriter

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
    machine = ArrayMachine(shape, writer.solver.is_inhabited)
    targets = dict.fromkeys(after for steps in machine.steps.values() for _, after in steps)
    names = {state: writer.reserve() for state in targets}
    for state, name in names.items():
        loops, exits = [], ['""'] if machine.is_final(state) else []
        for goal, after in machine.steps[state]:
            if after == state:
                loops.append(writer.value(goal))
            else:
                exits.append(f"{writer.comma} {writer.value(goal)} {names[after]}")
        loop = f"({writer.comma} ({' | '.join(loops)}))* " if loops else ""
        body = " | ".join(exits)
        writer.define(name, f"{loop}({body})" if loop else body)
    options = [
        f"{writer.open_array} {writer.value(goal)} {names[after]} {writer.close_array}"
        for goal, after in machine.steps.get(machine.start, ())
    ]
    if machine.is_final(machine.start):
        options.append(writer.empty_array)
    return " | ".join(options) or None


def _distinct(writer: GrammarWriter, shape: ArrayShape) -> str | None:
    if shape.contains:
        raise UnenforceableError("uniqueItems together with contains cannot be enforced", shape.pointer)
    goals = list(shape.prefix) + ([shape.rest] if shape.rest is not None else [])
    if shape.rest is None and all(not writer.solver.is_inhabited(one | other) for one, other in combinations(goals, 2)):
        return _plain(writer, shape)
    values = distinct_values(writer.solver, goals[0]) if len(goals) == 1 else None
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


def distinct_values(solver: Solver, goal: Goal) -> list[str] | None:
    """Texts of the values of a goal, when they are few and scalar."""
    texts: list[str] = []
    for shape in solver.shapes(goal):
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

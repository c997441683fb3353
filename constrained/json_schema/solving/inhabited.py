"""Whether a shape holds any value, given which goals do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from constrained.json_schema.errors import UnenforceableError
from constrained.json_schema.solving.array_machine import ArrayMachine
from constrained.json_schema.solving.object_machine import ObjectMachine
from constrained.json_schema.solving.shapes import ArrayShape, Goal, NumberShape, ObjectShape, Shape
from constrained.json_schema.writing.rules_array import distinct_values
from constrained.json_schema.writing.rules_number import is_empty_number

if TYPE_CHECKING:
    from constrained.json_schema.solving.solver import Solver

IsInhabited = Callable[[Goal], bool]


def goals_to_look_at(solver: Solver, shape: Shape) -> list[Goal]:
    """Goals on which the answer for ``shape`` depends."""
    found: dict[Goal, None] = {}

    def look(goal: Goal) -> bool:
        found[goal] = None
        return True

    is_possible(solver, shape, look)
    return list(found)


def is_possible(solver: Solver, shape: Shape, is_inhabited: IsInhabited) -> bool:
    """Whether some value has the shape. What no engine can enforce anyway counts as possible."""
    if isinstance(shape, NumberShape):
        return not is_empty_number(shape, solver.limits.number_digits)
    if isinstance(shape, ArrayShape):
        return _array(solver, shape, is_inhabited)
    if isinstance(shape, ObjectShape):
        return _object(shape, is_inhabited)
    return True


def _array(solver: Solver, shape: ArrayShape, is_inhabited: IsInhabited) -> bool:
    if shape.contains:
        try:
            machine = ArrayMachine(shape, is_inhabited)
        except UnenforceableError:
            return True
        return machine.start in machine.steps
    if shape.is_unique and not shape.prefix and shape.rest is not None and shape.min_items > 1:
        values = distinct_values(solver, shape.rest)
        if values is not None and len(values) < shape.min_items:
            return False
    needed = list(shape.prefix[: shape.min_items])
    if shape.min_items > len(shape.prefix) and shape.rest is not None:
        needed.append(shape.rest)
    return _all(is_inhabited, needed)


def _object(shape: ObjectShape, is_inhabited: IsInhabited) -> bool:
    required = [one.goal for one in shape.properties if one.is_required]
    required += [one.goal for one in shape.needed_extra]
    is_counted = shape.min_properties > len(required) or shape.max_properties is not None
    if not is_counted and not shape.conditions:
        return _all(is_inhabited, required)
    try:
        return ObjectMachine(shape, is_inhabited).is_possible
    except UnenforceableError:
        return True


def _all(is_inhabited: IsInhabited, goals: list[Goal]) -> bool:
    """Asks for every one of them: :func:`goals_to_look_at` listens."""
    answers = [is_inhabited(goal) for goal in goals]
    return all(answers)

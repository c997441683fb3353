"""Spells a JSON value as a grammar of this package would write it, and says whether the shapes take it at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from constrained.json_schema.reading.keywords import is_number
from constrained.json_schema.solving import numbers
from constrained.json_schema.solving.shapes import (
    ANY,
    ArrayShape,
    ConstantShape,
    Contains,
    Goal,
    KeyClass,
    NumberShape,
    ObjectShape,
    Shape,
    StringShape,
)
from constrained.json_schema.solving.solver import Solver
from constrained.patterns.derivative import matches


class Speller:
    """Orders keys as the shapes of a schema do.

    A value that fits no shape keeps its own order.

    Parameters
    ----------
    solver
        Of the schema.
    digits
        Most digits on a side of the point that the grammar writes; a number with more gets an exponent.
    """

    def __init__(self, solver: Solver, digits: int | None = None) -> None:
        self._solver = solver
        self._digits = digits
        self._kept: list[Any] = []
        self._fits: dict[tuple[Goal, int], bool] = {}

    def spell(self, goal: Goal, value: Any) -> str:
        """Compact JSON text."""
        return _dumps(self.ordered(goal, value), self._digits)

    def ordered(self, goal: Goal, value: Any) -> Any:
        """The value with the keys of its objects in the shapes' order."""
        if isinstance(value, dict):
            shape = self._object_shape(goal, value)
            if shape is None:
                return value
            goals = {one.name: one.goal for one in shape.properties}
            names = [name for name in goals if name in value] + self._order_others(shape, goals, value)
            return {name: self.ordered(self._child_goal(shape, goals, name), value[name]) for name in names}
        if isinstance(value, list):
            shapes = [s for s in self._solver.shapes(goal) if isinstance(s, ArrayShape)]
            chosen = next((s for s in shapes if self._takes(s, value)), shapes[0] if shapes else None)
            return [self.ordered(_item_goal(chosen, i), one) for i, one in enumerate(value)]
        return value

    def fits(self, goal: Goal, value: Any) -> bool:
        """Whether ``value`` satisfies ``goal``, whatever the order of its keys."""
        key = (goal, id(value))
        if key not in self._fits:
            self._kept.append(value)  # an id stays meaningful only while its object lives
            self._fits[key] = any(self._takes(shape, value) for shape in self._solver.shapes(goal))
        return self._fits[key]

    def _object_shape(self, goal: Goal, value: dict[str, Any]) -> ObjectShape | None:
        shapes = [shape for shape in self._solver.shapes(goal) if isinstance(shape, ObjectShape)]
        for shape in shapes:
            if self._takes(shape, value):
                return shape
        return shapes[0] if shapes else None

    def _order_others(self, shape: ObjectShape, goals: dict[str, Goal], value: dict[str, Any]) -> list[str]:
        """Undeclared keys as they are, but for those that must exist, which stand first in their order."""
        others = [name for name in value if name not in goals]
        first: list[str] = []
        for needed in shape.needed_extra:
            fitting = (n for n in others if matches(needed.language, n) and self.fits(needed.goal, value[n]))
            name = next((n for n in fitting if n not in first), None)
            first += [name] if name is not None else []
        return first + [name for name in others if name not in first]

    def _child_goal(self, shape: ObjectShape, goals: dict[str, Goal], name: str) -> Goal:
        if name in goals:
            return goals[name]
        return next((one.goal for one in shape.extra if matches(one.language, name)), ANY)

    def _takes(self, shape: Shape, value: Any) -> bool:
        if isinstance(shape, ConstantShape):
            return value is {"null": None, "true": True, "false": False}[shape.text]
        if isinstance(shape, NumberShape):
            number = Decimal(repr(value)) if isinstance(value, float) else value
            return is_number(number) and _takes_number(shape, Decimal(number))
        if isinstance(shape, StringShape):
            if not isinstance(value, str):
                return False
            return value in shape.allowed if shape.allowed is not None else matches(shape.language, value)
        if isinstance(shape, ArrayShape):
            return isinstance(value, list) and self._takes_array(shape, value)
        return isinstance(value, dict) and self._takes_object(shape, value)

    def _takes_array(self, shape: ArrayShape, value: list[Any]) -> bool:
        if len(value) < shape.min_items or (shape.max_items is not None and len(value) > shape.max_items):
            return False
        if shape.rest is None and len(value) > len(shape.prefix):
            return False
        if shape.is_unique and len({_dumps(_sorted(one)) for one in value}) < len(value):
            return False
        return all(self.fits(_item_goal(shape, i), one) for i, one in enumerate(value)) and all(
            self._counts(one, value) for one in shape.contains
        )

    def _counts(self, one: Contains, value: list[Any]) -> bool:
        count = sum(self.fits(one.goal, item) for item in value[one.start :])
        return count >= one.low and (one.high is None or count <= one.high)

    def _takes_object(self, shape: ObjectShape, value: dict[str, Any]) -> bool:
        if len(value) < shape.min_properties:
            return False
        if shape.max_properties is not None and len(value) > shape.max_properties:
            return False
        goals = {one.name: one.goal for one in shape.properties}
        if any(one.is_required and one.name not in value for one in shape.properties):
            return False
        others = {name: one for name, one in value.items() if name not in goals}
        return (
            all(self.fits(goal, value[name]) for name, goal in goals.items() if name in value)
            and all(
                any(matches(c.language, name) and self.fits(c.goal, one) for c in shape.extra)
                for name, one in others.items()
            )
            and self._places_needed(shape.needed_extra, others)
        )

    def _places_needed(self, needed: tuple[KeyClass, ...], others: dict[str, Any]) -> bool:
        return len(others) >= len(needed) and (
            not needed
            or any(
                matches(needed[0].language, name)
                and self.fits(needed[0].goal, one)
                and self._places_needed(needed[1:], {key: value for key, value in others.items() if key != name})
                for name, one in others.items()
            )
        )


def _item_goal(shape: ArrayShape | None, index: int) -> Goal:
    if shape is None:
        return ANY
    if index < len(shape.prefix):
        return shape.prefix[index]
    return shape.rest if shape.rest is not None else ANY


def _takes_number(shape: NumberShape, value: Decimal) -> bool:
    from constrained.json_schema.solving.finish import is_multiple

    is_integer = value == value.to_integral_value()
    if not (shape.takes_integers if is_integer else shape.takes_fractions):
        return False
    if shape.allowed is not None:
        return value in shape.allowed
    return (
        (shape.low is None or value > shape.low.value or (value == shape.low.value and not shape.low.is_exclusive))
        and (
            shape.high is None
            or value < shape.high.value
            or (value == shape.high.value and not shape.high.is_exclusive)
        )
        and value not in shape.excluded
        and all(is_multiple(value, step) for step in shape.multiples)
        and not any(is_multiple(value, step) for step in shape.not_multiples)
    )


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, list) else value


def _dumps(value: Any, digits: int | None = None) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_string(name)}:{_dumps(one, digits)}" for name, one in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(_dumps(one, digits) for one in value) + "]"
    if isinstance(value, float):
        value = Decimal(repr(value))
    if is_number(value):
        return numbers.spelled(value, digits)
    return _string(value) if isinstance(value, str) else json.dumps(value)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)

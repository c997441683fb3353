"""What a set of schemas means together: alternatives, each of one JSON type, with nothing left to combine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from constrained.json_schema.reading.document import SchemaNode
from constrained.json_schema.solving.numbers import Bound
from constrained.patterns.tree import Node


class Literal(NamedTuple):
    """A schema that must hold, or must not."""

    node: SchemaNode
    is_positive: bool


Goal = frozenset[Literal]
"""Schemas that hold together of one value; the empty goal is any value."""

ANY: Goal = frozenset()


def goal_of(literals: Iterable[Literal]) -> Goal:
    """Goal without the literals that hold anyway."""
    return frozenset(one for one in literals if not _holds_anyway(one))


def is_plainly_empty(goal: Goal) -> bool:
    """Whether one of the schemas is plainly false."""
    return any(isinstance(one.node.value, bool) and one.node.value is not one.is_positive for one in goal)


def _holds_anyway(literal: Literal) -> bool:
    value = literal.node.value
    return value is literal.is_positive or (value == {} and literal.is_positive)


@dataclass(frozen=True)
class ConstantShape:
    """``null``, ``true`` or ``false``."""

    text: str


@dataclass(frozen=True)
class NumberShape:
    takes_integers: bool
    takes_fractions: bool
    low: Bound | None = None
    high: Bound | None = None
    allowed: tuple[Decimal, ...] | None = None
    excluded: tuple[Decimal, ...] = ()
    multiples: tuple[Decimal, ...] = ()
    not_multiples: tuple[Decimal, ...] = ()
    pointer: str = ""


@dataclass(frozen=True)
class StringShape:
    """Strings of ``language``, or exactly those of ``allowed``."""

    language: Node
    allowed: tuple[str, ...] | None = None
    is_length_only: bool = False
    min_length: int = 0
    max_length: int | None = None


@dataclass(frozen=True)
class Contains:
    """Between ``low`` and ``high`` items, from index ``start`` on, are members of ``goal``."""

    goal: Goal
    low: int
    high: int | None
    start: int = 0
    pointer: str = ""


@dataclass(frozen=True)
class ArrayShape:
    prefix: tuple[Goal, ...]
    rest: Goal | None
    """``None``: no item behind the prefix."""
    min_items: int
    max_items: int | None
    contains: tuple[Contains, ...] = ()
    is_unique: bool = False
    pointer: str = ""


@dataclass(frozen=True)
class Property:
    name: str
    goal: Goal
    is_required: bool
    is_conditional: bool = False
    """Only with an option of a condition that names it: the object is closed otherwise."""


@dataclass(frozen=True)
class KeyClass:
    """Undeclared keys in ``language`` have values in ``goal``."""

    language: Node
    goal: Goal


@dataclass(frozen=True)
class Option:
    """One way in which a condition on an object can hold."""

    required: tuple[str, ...]
    absent: frozenset[str]
    goals: tuple[tuple[str, Goal], ...]
    """Of keys, what their values satisfy where they occur."""

    @property
    def names(self) -> frozenset[str]:
        return self.absent.union(self.required, (name for name, _ in self.goals))


@dataclass(frozen=True)
class Condition:
    """Any one of the options holds."""

    options: tuple[Option, ...]
    pointer: str

    @property
    def names(self) -> frozenset[str]:
        return frozenset[str]().union(*(one.names for one in self.options))


@dataclass(frozen=True)
class ObjectShape:
    properties: tuple[Property, ...]
    """In the order in which they are written."""
    extra: tuple[KeyClass, ...]
    min_properties: int
    max_properties: int | None
    needed_extra: tuple[KeyClass, ...] = ()
    """Undeclared keys of these classes occur, in this order, among others."""
    pointer: str = ""
    conditions: tuple[Condition, ...] = ()
    """Conditions on the properties, all of which hold."""


Shape = ConstantShape | NumberShape | StringShape | ArrayShape | ObjectShape

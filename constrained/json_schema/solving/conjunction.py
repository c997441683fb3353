"""The running conjunction of constraints on one value, filled keyword by keyword."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from constrained.json_schema.solving.numbers import Bound
from constrained.json_schema.solving.shapes import Condition, Contains, Literal
from constrained.patterns.derivative import matches
from constrained.patterns.tree import Node

if TYPE_CHECKING:
    from constrained.json_schema.solving.solver import Choice

ATOMS = frozenset({"null", "true", "false", "integer", "fraction", "string", "array", "object"})
"""JSON's types, with booleans split by value and numbers into whole and others."""

_ATOMS_OF_TYPE = {
    "null": frozenset({"null"}),
    "boolean": frozenset({"true", "false"}),
    "integer": frozenset({"integer"}),
    "number": frozenset({"integer", "fraction"}),
    "string": frozenset({"string"}),
    "array": frozenset({"array"}),
    "object": frozenset({"object"}),
}
NUMBERS = _ATOMS_OF_TYPE["number"]
SCALARS = ATOMS - {"array", "object"}

Scopes = tuple[int, ...]


def atoms_of(types: str | list[str]) -> frozenset[str]:
    names = [types] if isinstance(types, str) else types
    return frozenset[str]().union(*(_ATOMS_OF_TYPE[name] for name in names))


@dataclass(frozen=True)
class PropertyGroup:
    """``properties``, ``patternProperties`` and ``additionalProperties`` of one schema, which belong together.

    Or, in their place among the others, alternatives that are still to be taken.
    """

    properties: dict[str, Literal]
    patterns: tuple[tuple[Node, Literal], ...] = ()
    additional: Literal | None = None
    scopes: Scopes = ()
    choice: Choice | None = None
    """Alternatives that wait until everything else is known of the object."""
    condition: Condition | None = None
    """Alternatives that name properties alone, and stay together."""


def literals_for(name: str, groups: Iterable[PropertyGroup]) -> Iterator[Literal]:
    """Schemas that hold for the value of one property."""
    for group in groups:
        found = [literal for language, literal in group.patterns if matches(language, name)]
        if name in group.properties:
            found.insert(0, group.properties[name])
        elif not found and group.additional is not None:
            found = [group.additional]
        yield from found


@dataclass(frozen=True)
class ItemGroup:
    """``prefixItems`` and ``items`` of one schema."""

    prefix: tuple[Literal, ...]
    rest: Literal | None = None
    scopes: Scopes = ()


@dataclass(frozen=True)
class NeededKey:
    """Some key in ``language`` (``None``: any) outside ``excluded`` has a value for which ``literals`` hold."""

    language: Node | None
    excluded: frozenset[str]
    literals: tuple[Literal, ...]
    pointer: str


@dataclass(frozen=True)
class Unevaluated:
    """``literal`` holds of what nothing within ``scope`` has looked at."""

    scope: int
    outer: Scopes
    """Scopes around, for which everything here then counts as looked at."""
    literal: Literal


@dataclass
class Conjunction:
    """Everything known so far of a value. Mutable; copied where alternatives part."""

    atoms: frozenset[str] = ATOMS
    low: Bound | None = None
    high: Bound | None = None
    allowed_numbers: frozenset[Decimal] | None = None
    excluded_numbers: frozenset[Decimal] = frozenset()
    multiples: tuple[Decimal, ...] = ()
    not_multiples: tuple[Decimal, ...] = ()
    allowed_strings: tuple[str, ...] | None = None
    excluded_strings: frozenset[str] = frozenset()
    languages: tuple[Node, ...] = ()
    min_length: int = 0
    max_length: int | None = None
    item_groups: tuple[ItemGroup, ...] = ()
    min_items: int = 0
    max_items: int | None = None
    contains: tuple[Contains, ...] = ()
    contained: tuple[tuple[Literal, Scopes], ...] = ()
    """Schemas of ``contains``: items that satisfy one count as looked at within the scopes."""
    is_unique: bool = False
    property_groups: tuple[PropertyGroup, ...] = ()
    required: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()
    name_literals: tuple[Literal, ...] = ()
    needed_keys: tuple[NeededKey, ...] = ()
    min_properties: int = 0
    max_properties: int | None = None
    unevaluated_properties: tuple[Unevaluated, ...] = ()
    unevaluated_items: tuple[Unevaluated, ...] = ()
    seen: frozenset[tuple[Literal, Scopes]] = field(default=frozenset())
    pointers: dict[str, str] = field(default_factory=dict)
    """Where the keyword named was last met, for messages."""

    def copy(self) -> Conjunction:
        return replace(self, pointers=dict(self.pointers))

    @property
    def is_dead(self) -> bool:
        return not self.atoms

    def restrict(self, atoms: frozenset[str]) -> None:
        self.atoms &= atoms

    def raise_low(self, bound: Bound) -> None:
        if self.low is None or (bound.value, bound.is_exclusive) > (self.low.value, self.low.is_exclusive):
            self.low = bound

    def lower_high(self, bound: Bound) -> None:
        if self.high is None or (-bound.value, bound.is_exclusive) > (-self.high.value, self.high.is_exclusive):
            self.high = bound

    def allow_numbers(self, values: frozenset[Decimal]) -> None:
        self.allowed_numbers = values if self.allowed_numbers is None else self.allowed_numbers & values

    def allow_strings(self, values: tuple[str, ...]) -> None:
        if self.allowed_strings is None:
            self.allowed_strings = values
        else:
            both = set(values)
            self.allowed_strings = tuple(one for one in self.allowed_strings if one in both)

    def limit_length(self, low: int = 0, high: int | None = None) -> None:
        self.min_length = max(self.min_length, low)
        self.max_length = _least(self.max_length, high)

    def limit_items(self, low: int = 0, high: int | None = None) -> None:
        self.min_items = max(self.min_items, low)
        self.max_items = _least(self.max_items, high)

    def limit_properties(self, low: int = 0, high: int | None = None) -> None:
        self.min_properties = max(self.min_properties, low)
        self.max_properties = _least(self.max_properties, high)

    def require(self, *names: str) -> None:
        self.required += tuple(dict.fromkeys(name for name in names if name not in self.required))


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)

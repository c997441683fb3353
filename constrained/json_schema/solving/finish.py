"""From a finished conjunction to shapes: what is left of it for each JSON type."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from constrained.json_schema.solving.conjunction import Conjunction, ItemGroup
from constrained.json_schema.solving.finish_object import object_shapes
from constrained.json_schema.solving.shapes import (
    ArrayShape,
    ConstantShape,
    Goal,
    Literal,
    NumberShape,
    Shape,
    StringShape,
    goal_of,
    is_plainly_empty,
)
from constrained.json_schema.solving.solver import Solver
from constrained.patterns import tree
from constrained.patterns.derivative import is_empty, matches
from constrained.patterns.tree import Node

_MAX_STATES = 64
"""Most states of an automaton that is built to see whether a string can have any value."""


def finish(solver: Solver, conjunction: Conjunction) -> Iterator[Shape]:
    """Shapes of one alternative, at most one for each type but objects."""
    for atom in ("null", "true", "false"):
        if atom in conjunction.atoms:
            yield ConstantShape(atom)
    yield from _number_shape(conjunction)
    if "string" in conjunction.atoms:
        yield from _string_shape(conjunction)
    if "array" in conjunction.atoms:
        yield from _array_shape(solver, conjunction)
    if "object" in conjunction.atoms:
        yield from object_shapes(solver, conjunction)


def string_language(solver: Solver, goal: Goal) -> Node:
    """Strings among the values of ``goal``."""
    return tree.either(
        tree.literals(shape.allowed) if shape.allowed is not None else shape.language
        for shape in solver.shapes(goal)
        if isinstance(shape, StringShape)
    )


def _number_shape(conjunction: Conjunction) -> Iterator[Shape]:
    integers, fractions = "integer" in conjunction.atoms, "fraction" in conjunction.atoms
    low, high = conjunction.low, conjunction.high
    if not integers and not fractions:
        return
    allowed = None
    if conjunction.allowed_numbers is not None:
        allowed = tuple(sorted(v for v in conjunction.allowed_numbers if _number_fits(conjunction, v)))
        if not allowed:
            return
    elif (
        low is not None
        and high is not None
        and (low.value > high.value or (low.value == high.value and (low.is_exclusive or high.is_exclusive)))
    ):
        return
    yield NumberShape(
        integers,
        fractions,
        low,
        high,
        allowed,
        () if allowed is not None else tuple(sorted(conjunction.excluded_numbers)),
        () if allowed is not None else tuple(dict.fromkeys(conjunction.multiples)),
        () if allowed is not None else tuple(dict.fromkeys(conjunction.not_multiples)),
        conjunction.pointers.get("multipleOf", ""),
    )


def _number_fits(conjunction: Conjunction, value: Decimal) -> bool:
    low, high = conjunction.low, conjunction.high
    atom = "integer" if value == value.to_integral_value() else "fraction"
    return (
        atom in conjunction.atoms
        and value not in conjunction.excluded_numbers
        and (low is None or value > low.value or (value == low.value and not low.is_exclusive))
        and (high is None or value < high.value or (value == high.value and not high.is_exclusive))
        and all(is_multiple(value, step) for step in conjunction.multiples)
        and not any(is_multiple(value, step) for step in conjunction.not_multiples)
    )


def is_multiple(value: Decimal, step: Decimal) -> bool:
    """Whether ``value`` is a whole multiple of ``step``, exactly."""
    numerator, denominator = (value.as_integer_ratio(), step.as_integer_ratio())
    return (numerator[0] * denominator[1]) % (numerator[1] * denominator[0]) == 0


def _string_shape(conjunction: Conjunction) -> Iterator[Shape]:
    low, high = conjunction.min_length, conjunction.max_length
    if high is not None and low > high:
        return
    if conjunction.allowed_strings is not None:
        allowed = tuple(
            one
            for one in conjunction.allowed_strings
            if one not in conjunction.excluded_strings
            and low <= len(one)
            and (high is None or len(one) <= high)
            and all(matches(language, one) for language in conjunction.languages)
        )
        if allowed:
            yield StringShape(tree.NOTHING, allowed)
        return
    parts: list[Node] = list(conjunction.languages)
    if low > 0 or high is not None:
        parts.append(tree.repeat(tree.ANY_CHAR, low, high))
    if conjunction.excluded_strings:
        parts.append(tree.complement(tree.literals(sorted(conjunction.excluded_strings))))
    language = tree.both(parts)
    if not is_empty(language, _MAX_STATES):
        length_only = not conjunction.languages and not conjunction.excluded_strings
        yield StringShape(language, None, length_only, low, high)


def _array_shape(solver: Solver, conjunction: Conjunction) -> Iterator[Shape]:
    groups = [*conjunction.item_groups, *_unevaluated(solver, conjunction)]
    length = max((len(group.prefix) for group in groups), default=0)
    prefix = []
    for index in range(length):
        literals = (g.prefix[index] if index < len(g.prefix) else g.rest for g in groups)
        prefix.append(goal_of(one for one in literals if one is not None))
    rest: Goal | None = goal_of(group.rest for group in groups if group.rest is not None)
    assert rest is not None
    low, high = conjunction.min_items, conjunction.max_items
    empty = next((i for i, goal in enumerate(prefix) if is_plainly_empty(goal)), None)
    if empty is not None:
        prefix, rest = prefix[:empty], None
    elif is_plainly_empty(rest):
        rest = None
    if rest is None:
        high = len(prefix) if high is None else min(high, len(prefix))
    if high is not None:
        if low > high:
            return
        prefix = prefix[:high]
        rest = None if high <= len(prefix) else rest
    yield ArrayShape(
        tuple(prefix),
        rest,
        low,
        high,
        conjunction.contains,
        conjunction.is_unique and high != 0 and high != 1,
        conjunction.pointers.get("uniqueItems", ""),
    )


def _unevaluated(solver: Solver, conjunction: Conjunction) -> Iterator[ItemGroup]:
    for one in conjunction.unevaluated_items:
        groups = [group for group in conjunction.item_groups if one.scope in group.scopes]
        is_covered = any(one.scope in other.outer for other in conjunction.unevaluated_items)
        if is_covered or any(group.rest is not None for group in groups):
            continue
        length = max((len(group.prefix) for group in groups), default=0)
        known = max(groups, key=lambda group: len(group.prefix)).prefix if groups else ()
        contained = [literal for literal, scopes in conjunction.contained if one.scope in scopes]
        yield ItemGroup(known[:length], _any_of(solver, [one.literal, *contained]))


def _any_of(solver: Solver, literals: list[Literal]) -> Literal:
    if len(literals) == 1:
        return literals[0]
    nodes = [literal.node for literal in dict.fromkeys(literals)]
    pointer = " or ".join(node.pointer for node in nodes)
    return Literal(solver.document.synthetic({"anyOf": [node.value for node in nodes]}, pointer, nodes[0]), True)

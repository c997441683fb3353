"""What is left of a conjunction for objects: declared properties in order, and classes of undeclared keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from constrained.json_schema.errors import UnenforceableError
from constrained.json_schema.solving.conjunction import Conjunction, NeededKey, PropertyGroup, literals_for
from constrained.json_schema.solving.shapes import (
    Condition,
    Goal,
    KeyClass,
    Literal,
    ObjectShape,
    Property,
    goal_of,
    is_plainly_empty,
)
from constrained.patterns import tree
from constrained.patterns.derivative import finite_strings, is_empty, matches
from constrained.patterns.tree import Node

if TYPE_CHECKING:
    from constrained.json_schema.solving.solver import Solver

_MAX_KEY_CLASSES = 128
_MAX_LISTED_KEYS = 64
_MAX_PLACES = 64


def object_shapes(solver: Solver, conjunction: Conjunction) -> Iterator[ObjectShape]:
    """Shapes of the objects that a conjunction allows; several only where some key must occur that has no name yet."""
    required = dict.fromkeys(conjunction.required)
    if not conjunction.absent.isdisjoint(required):
        return
    conditions = [group.condition for group in conjunction.property_groups if group.condition is not None]
    groups = [*conjunction.property_groups, *_unevaluated(conjunction)]
    languages = [_names_of(solver, literal) for literal in conjunction.name_literals]
    names = _declared_names(groups, required, languages)
    declared = _Declared(conjunction, groups, languages, conditions)
    conditional = _close(solver, declared, names)
    placed = _place_needed(conjunction, declared, names, required)
    for extra_literals, extra_required, needed in placed:
        yield from _shapes(solver, declared, names, extra_literals, {**required, **extra_required}, needed, conditional)


@dataclass(frozen=True)
class _Declared:
    """What a conjunction says of keys."""

    conjunction: Conjunction
    groups: list[PropertyGroup]
    languages: list[Node]
    conditions: list[Condition]

    def literals(self, name: str) -> list[Literal]:
        return list(literals_for(name, self.groups))

    def allows(self, name: str) -> bool:
        """Whether the key may occur, by the look of it."""
        return (
            name not in self.conjunction.absent
            and all(matches(language, name) for language in self.languages)
            and not is_plainly_empty(frozenset(self.literals(name)))
        )


def _names_of(solver: Solver, literal: Literal) -> Node:
    from constrained.json_schema.solving.finish import string_language

    return string_language(solver, frozenset({literal}))


def _declared_names(groups: list[PropertyGroup], required: dict[str, None], languages: list[Node]) -> list[str]:
    names: dict[str, None] = {}
    for group in groups:
        names |= dict.fromkeys(group.properties)
        if group.condition is not None:
            names |= dict.fromkeys(name for option in group.condition.options for name, _ in option.goals)
    names |= required
    for group in groups:
        if group.condition is not None:
            for option in group.condition.options:
                names |= dict.fromkeys([*option.required, *sorted(option.absent)])
    # A short list of possible keys is as good as declared ones, and each then occurs at most once.
    for language in [*languages, *(language for group in groups for language, _ in group.patterns)]:
        listed = _listed(language)
        if listed is not None:
            names |= dict.fromkeys(listed)
    return list(names)


@lru_cache(maxsize=512)
def _listed(language: Node) -> list[str] | None:
    return finite_strings(language, _MAX_LISTED_KEYS)


def _close(solver: Solver, declared: _Declared, names: list[str]) -> frozenset[str]:
    """Close an object that declares properties and says nothing of others; the names that conditions alone declare.

    OpenAI's ``strict`` closes it whatever else it asks for. A server that closes such objects of its own accord leaves
    open what needs further keys, and takes required names as declared: every answer is a value of the schema, and no
    schema loses all of its values.
    """
    document, conjunction, groups = solver.document, declared.conjunction, declared.groups
    if not document.strict and not document.closes_objects:
        return frozenset()
    if any(group.additional is not None or group.patterns for group in groups):
        return frozenset()
    own = {name for group in groups for name in group.properties}
    options = [option for condition in declared.conditions for option in condition.options]
    conditional = {name for option in options for name, _ in option.goals}
    if not own and not conditional:
        return frozenset()
    if not document.strict:
        own.update(conjunction.required)
        conditional.update(name for option in options for name in option.required)
        known = [name for name in names if declared.allows(name)]
        if conjunction.needed_keys or declared.languages or conjunction.min_properties > len(known):
            return frozenset()
    nothing = Literal(document.synthetic(False, "", document.root), True)
    anything = Literal(document.synthetic(True, "", document.root), True)
    groups.append(PropertyGroup(dict.fromkeys(own | conditional, anything), (), nothing))
    return frozenset(conditional - own)


def explain_required(solver: Solver, conjunction: Conjunction, name: str) -> None:
    """Say that a required property is what leaves an object without values."""
    if any(name in group.properties for group in conjunction.property_groups):
        message = f"the property {name!r} is required, but can have no value"
    else:
        closed = "'strict' closes the object" if solver.document.strict else "the object takes no such key"
        message = (
            f"{name!r} is required but not declared, and {closed}: declare it under 'properties', or take it out of "
            "'required'"
        )
    solver.explain(message, conjunction.pointers.get("required", ""))


def _unevaluated(conjunction: Conjunction) -> Iterator[PropertyGroup]:
    for one in conjunction.unevaluated_properties:
        groups = [group for group in conjunction.property_groups if one.scope in group.scopes]
        is_covered = any(one.scope in other.outer for other in conjunction.unevaluated_properties)
        if is_covered or any(group.additional is not None for group in groups):
            continue
        properties = {name: literal for group in groups for name, literal in group.properties.items()}
        yield PropertyGroup(properties, tuple(pair for group in groups for pair in group.patterns), one.literal)


_Placed = tuple[dict[str, list[Literal]], dict[str, None], tuple[NeededKey, ...]]


def _place_needed(
    conjunction: Conjunction, declared: _Declared, names: list[str], required: dict[str, None]
) -> Iterator[_Placed]:
    """Ways in which the keys that must exist can be declared ones, or undeclared ones, in every order."""
    options: list[_Placed] = [({}, {}, ())]
    possible = [name for name in names if declared.allows(name)]
    for needed in conjunction.needed_keys:
        fitting = [name for name in possible if _fits(needed, name)]
        grown: list[_Placed] = []
        for literals, also_required, open_keys in options:
            present = [name for name in fitting if name in required or name in also_required]
            if any(_has(needed, [*declared.literals(name), *literals.get(name, [])]) for name in present):
                grown.append((literals, also_required, open_keys))  # a key that occurs anyway answers the need
                continue
            for at in range(len(open_keys) + 1):
                grown.append((literals, also_required, (*open_keys[:at], needed, *open_keys[at:])))
            for at, one in enumerate(open_keys):
                merged = (*open_keys[:at], _merged(one, needed), *open_keys[at + 1 :])
                grown.append((literals, also_required, merged))
            for name in fitting:
                more = {**literals, name: [*literals.get(name, []), *needed.literals]}
                grown.append((more, {**also_required, name: None}, open_keys))
        options = [one for one in grown if _has_room(declared, one[2])]
        if len(options) > _MAX_PLACES:
            raise UnenforceableError("too many keys that must exist at once", needed.pointer)
    yield from options


def _fits(needed: NeededKey, name: str) -> bool:
    return name not in needed.excluded and (needed.language is None or matches(needed.language, name))


def _has(needed: NeededKey, literals: list[Literal]) -> bool:
    return goal_of(needed.literals) <= goal_of(literals)


def _has_room(declared: _Declared, open_keys: tuple[NeededKey, ...]) -> bool:
    """Whether undeclared keys may occur at all, where some must."""
    return not open_keys or not any(
        one.additional is not None and not one.patterns and is_plainly_empty(frozenset([one.additional]))
        for one in declared.groups
    )


def _merged(one: NeededKey, other: NeededKey) -> NeededKey:
    """One key that answers both needs."""
    languages = [language for language in (one.language, other.language) if language is not None]
    return NeededKey(
        tree.both(languages) if languages else None,
        one.excluded | other.excluded,
        one.literals + other.literals,
        one.pointer,
    )


def _shapes(
    solver: Solver,
    declared: _Declared,
    names: list[str],
    extra_literals: dict[str, list[Literal]],
    required: dict[str, None],
    needed: tuple[NeededKey, ...],
    conditional: frozenset[str],
) -> Iterator[ObjectShape]:
    conjunction, groups, languages = declared.conjunction, declared.groups, declared.languages
    properties: list[Property] = []
    for name in names:
        goal = goal_of([*declared.literals(name), *extra_literals.get(name, [])])
        if declared.allows(name) and not is_plainly_empty(goal):
            properties.append(Property(name, goal, name in required, name in conditional))
        elif name in required:
            explain_required(solver, conjunction, name)
            return
    conditions = _possible(declared.conditions, {one.name for one in properties}, required)
    if conditions is None:
        return
    taken = sorted({*names, *conjunction.absent})
    base = list(languages)
    if taken:
        base.append(tree.complement(tree.literals(taken)))
    # Keys that nothing describes have a bound on their length; patterns are their author's business.
    bound = [] if languages else [tree.repeat(tree.ANY_CHAR, 0, solver.limits.max_key_length)]
    classes = [
        KeyClass(tree.both([language, *(bound if is_open else []), *base]), goal)
        for language, is_open, goal in _key_classes(groups, conjunction)
    ]
    extra = [one for one in classes if not is_empty(one.language)]
    least, most = conjunction.min_properties, conjunction.max_properties
    if most is not None and most < max(least, len(required)):
        return
    if least > len(properties) and not extra:
        return
    pointer = next(
        (conjunction.pointers[k] for k in ("minProperties", "maxProperties") if k in conjunction.pointers), ""
    )
    places = [_needed_classes(key, extra) for key in needed]
    if prod(map(len, places)) > _MAX_PLACES:
        raise UnenforceableError("too many keys that must exist at once", needed[0].pointer)
    for needed_extra in product(*places):
        yield ObjectShape(tuple(properties), tuple(extra), least, most, needed_extra, pointer, conditions)


def _possible(conditions: list[Condition], names: set[str], required: dict[str, None]) -> tuple[Condition, ...] | None:
    """The conditions without options that the rest rules out; ``None`` where one has none left."""
    left: list[Condition] = []
    for condition in conditions:
        options = tuple(
            one for one in condition.options if names.issuperset(one.required) and one.absent.isdisjoint(required)
        )
        if not options:
            return None
        left.append(replace(condition, options=options))
    return tuple(left)


def _key_classes(groups: list[PropertyGroup], conjunction: Conjunction) -> list[tuple[Node, bool, Goal]]:
    """Undeclared keys by the patterns they match; classes with the same values are one.

    The flag tells classes with keys that match none of the patterns.
    """
    patterns = list(dict.fromkeys(language for group in groups for language, _ in group.patterns))
    patterns = [language for language in patterns if _listed(language) is None]
    subsets: list[tuple[Node, ...]] = [()]
    for pattern in patterns:
        subsets += [(*subset, pattern) for subset in subsets if is_empty(tree.both([*subset, pattern])) is not True]
        if len(subsets) > _MAX_KEY_CLASSES:
            pointer = conjunction.pointers.get("patternProperties", "")
            raise UnenforceableError("too many overlapping patternProperties", pointer)
    by_goal: dict[Goal, list[tuple[Node, ...]]] = {}
    for subset in subsets:
        goal = goal_of(literal for group in groups for literal in _class_literals(subset, group))
        by_goal.setdefault(goal, []).append(subset)
    classes: list[tuple[Node, bool, Goal]] = []
    for goal, members in by_goal.items():
        if is_plainly_empty(goal):
            continue
        if len(by_goal) == 1:
            language: Node = tree.ANYTHING
        else:
            language = tree.either(_exactly(subset, patterns) for subset in members)
        if language != tree.NOTHING:
            classes.append((language, () in members, goal))
    return classes


def _class_literals(subset: tuple[Node, ...], group: PropertyGroup) -> list[Literal]:
    found = [literal for language, literal in group.patterns if language in subset]
    return found or ([group.additional] if group.additional is not None else [])


def _exactly(subset: tuple[Node, ...], patterns: list[Node]) -> Node:
    """Keys that match the patterns of ``subset`` and none else."""
    others = [p for p in patterns if p not in subset and (not subset or is_empty(tree.both([*subset, p])) is not True)]
    rest = [tree.complement(tree.either(others))] if others else []
    return tree.both([*subset, *rest])


def _needed_classes(needed: NeededKey, extra: list[KeyClass]) -> list[KeyClass]:
    """Classes of undeclared keys among which a key that must exist can be."""
    wanted = [needed.language] if needed.language is not None else []
    if needed.excluded:
        wanted.append(tree.complement(tree.literals(sorted(needed.excluded))))
    options = [KeyClass(tree.both([*wanted, one.language]), one.goal.union(needed.literals)) for one in extra]
    return [one for one in options if not is_empty(one.language) and not is_plainly_empty(one.goal)]

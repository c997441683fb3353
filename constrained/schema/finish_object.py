"""What is left of a conjunction for objects: declared properties in order, and classes of undeclared keys."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from constrained.schema.conjunction import Conjunction, NeededKey, PropertyGroup
from constrained.schema.errors import UnenforceableError
from constrained.schema.pattern import tree
from constrained.schema.pattern.derivative import finite_strings, is_empty, matches
from constrained.schema.pattern.tree import Node
from constrained.schema.shapes import Goal, KeyClass, Literal, ObjectShape, Property

if TYPE_CHECKING:
    from constrained.schema.solver import Solver

_MAX_KEY_CLASSES = 128
_MAX_LISTED_KEYS = 64
_MAX_PLACES = 64


def object_shapes(solver: Solver, conjunction: Conjunction) -> Iterator[ObjectShape]:
    """Shapes of the objects that a conjunction allows; several only where some key must occur that has no name yet."""
    required = dict.fromkeys(conjunction.required)
    if not conjunction.absent.isdisjoint(required):
        return
    groups = [*conjunction.property_groups, *_unevaluated(conjunction)]
    languages = [_names_of(solver, literal) for literal in conjunction.name_literals]
    names = _declared_names(groups, required, languages)
    if solver.document.strict:
        groups += _closing(solver, groups)
    for extra_literals, extra_required, needed in _place_needed(conjunction, names):
        shape = _shape(
            solver, conjunction, groups, languages, names, extra_literals, {**required, **extra_required}, needed
        )
        if shape is not None:
            yield shape


def _names_of(solver: Solver, literal: Literal) -> Node:
    from constrained.schema.finish import string_language

    return string_language(solver, frozenset({literal}))


def _declared_names(groups: list[PropertyGroup], required: dict[str, None], languages: list[Node]) -> list[str]:
    names: dict[str, None] = {}
    for group in groups:
        names |= dict.fromkeys(group.properties)
    names |= required
    # A short list of possible keys is as good as declared ones, and each then occurs at most once.
    for language in [*languages, *(language for group in groups for language, _ in group.patterns)]:
        listed = _listed(language)
        if listed is not None:
            names |= dict.fromkeys(listed)
    return list(names)


@lru_cache(maxsize=512)
def _listed(language: Node) -> list[str] | None:
    return finite_strings(language, _MAX_LISTED_KEYS)


def _closing(solver: Solver, groups: list[PropertyGroup]) -> list[PropertyGroup]:
    """OpenAI's strict: an object that declares properties and says nothing of others has no others."""
    if not any(group.properties for group in groups):
        return []
    if any(group.additional is not None or group.patterns for group in groups):
        return []
    nothing = Literal(solver.document.synthetic(False, "", solver.document.root), True)
    anything = Literal(solver.document.synthetic(True, "", solver.document.root), True)
    known = {name: anything for group in groups for name in group.properties}
    return [PropertyGroup(known, (), nothing)]


def _unevaluated(conjunction: Conjunction) -> Iterator[PropertyGroup]:
    for one in conjunction.unevaluated_properties:
        groups = [group for group in conjunction.property_groups if one.scope in group.scopes]
        is_covered = any(one.scope in other.outer for other in conjunction.unevaluated_properties)
        if is_covered or any(group.additional is not None for group in groups):
            continue
        properties = {name: literal for group in groups for name, literal in group.properties.items()}
        yield PropertyGroup(properties, tuple(pair for group in groups for pair in group.patterns), one.literal)


_Placed = tuple[dict[str, list[Literal]], dict[str, None], tuple[NeededKey, ...]]


def _place_needed(conjunction: Conjunction, names: list[str]) -> Iterator[_Placed]:
    """Ways in which the keys that must exist can be declared ones, or undeclared ones, in every order."""
    options: list[_Placed] = [({}, {}, ())]
    for needed in conjunction.needed_keys:
        grown = [
            (literals, required, (*open_keys[:at], needed, *open_keys[at:]))
            for literals, required, open_keys in options
            for at in range(len(open_keys) + 1)
        ]
        grown += [
            (literals, required, (*open_keys[:at], _merged(open_keys[at], needed), *open_keys[at + 1 :]))
            for literals, required, open_keys in options
            for at in range(len(open_keys))
        ]
        for name in names:
            if name in needed.excluded or (needed.language is not None and not matches(needed.language, name)):
                continue
            for literals, required, open_keys in options:
                merged = {**literals, name: [*literals.get(name, []), *needed.literals]}
                grown.append((merged, {**required, name: None}, open_keys))
        options = grown
        if len(options) > _MAX_PLACES:
            raise UnenforceableError("too many keys that must exist at once", needed.pointer)
    yield from options


def _merged(one: NeededKey, other: NeededKey) -> NeededKey:
    """One key that answers both needs."""
    languages = [language for language in (one.language, other.language) if language is not None]
    return NeededKey(
        tree.both(languages) if languages else None,
        one.excluded | other.excluded,
        one.literals + other.literals,
        one.pointer,
    )


def _shape(
    solver: Solver,
    conjunction: Conjunction,
    groups: list[PropertyGroup],
    languages: list[Node],
    names: list[str],
    extra_literals: dict[str, list[Literal]],
    required: dict[str, None],
    needed: tuple[NeededKey, ...],
) -> ObjectShape | None:
    from constrained.schema.finish import goal_of, is_plainly_empty

    properties: list[Property] = []
    for name in names:
        literals = [*_literals_for(name, groups), *extra_literals.get(name, [])]
        goal = goal_of(literals)
        possible = name not in conjunction.absent and all(matches(language, name) for language in languages)
        if not possible or is_plainly_empty(goal):
            if name in required:
                return None
            continue
        properties.append(Property(name, goal, name in required))
    taken = sorted({*names, *conjunction.absent})
    base = list(languages)
    if taken:
        base.append(tree.complement(tree.literals(taken)))
    # Keys that nothing describes have a bound on their length; patterns are their author's business.
    bound = [] if languages else [tree.repeat(tree.ANY_CHAR, 0, solver.limits.max_key_length)]
    extra = [
        KeyClass(tree.both([language, *(bound if is_open else []), *base]), goal)
        for language, is_open, goal in _key_classes(groups, conjunction)
    ]
    needed_extra = tuple(one for one in (_needed_class(key, extra) for key in needed) if one is not None)
    if len(needed_extra) < len(needed):
        return None
    least, most = conjunction.min_properties, conjunction.max_properties
    if most is not None and most < max(least, len(required)):
        return None
    if least > len(properties) and not extra:
        return None
    pointer = next(
        (conjunction.pointers[k] for k in ("minProperties", "maxProperties") if k in conjunction.pointers), ""
    )
    return ObjectShape(tuple(properties), tuple(extra), least, most, needed_extra, pointer)


def _literals_for(name: str, groups: list[PropertyGroup]) -> Iterator[Literal]:
    for group in groups:
        found = [literal for language, literal in group.patterns if matches(language, name)]
        if name in group.properties:
            found.insert(0, group.properties[name])
        elif not found and group.additional is not None:
            found = [group.additional]
        yield from found


def _key_classes(groups: list[PropertyGroup], conjunction: Conjunction) -> list[tuple[Node, bool, Goal]]:
    """Undeclared keys by the patterns they match; classes with the same values are one.

    The flag tells classes with keys that match none of the patterns.
    """
    from constrained.schema.finish import goal_of, is_plainly_empty

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


def _needed_class(needed: NeededKey, extra: list[KeyClass]) -> KeyClass | None:
    wanted = [needed.language] if needed.language is not None else []
    if needed.excluded:
        wanted.append(tree.complement(tree.literals(sorted(needed.excluded))))
    options = [KeyClass(tree.both([*wanted, one.language]), one.goal.union(needed.literals)) for one in extra]
    options = [one for one in options if is_empty(one.language) is not True]
    if len(options) > 1:
        raise UnenforceableError(
            "a key that must exist and may match several patterns is not supported", needed.pointer
        )
    return options[0] if options else None

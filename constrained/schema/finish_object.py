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
    for scope, literal in conjunction.unevaluated_properties:
        groups = [group for group in conjunction.property_groups if scope in group.scopes]
        inner = any(
            scope in group.scopes and other in group.scopes and group.scopes.index(other) > group.scopes.index(scope)
            for other, _ in conjunction.unevaluated_properties
            for group in conjunction.property_groups
        )
        if inner or any(group.additional is not None for group in groups):
            continue
        properties = {name: one for group in groups for name, one in group.properties.items()}
        yield PropertyGroup(properties, tuple(one for group in groups for one in group.patterns), literal)


_Placed = tuple[dict[str, Literal], dict[str, None], NeededKey | None]


def _place_needed(conjunction: Conjunction, names: list[str]) -> Iterator[_Placed]:
    """Ways in which the keys that must exist can be declared ones or, one of them, an undeclared one."""
    options: list[tuple[dict[str, list[Literal]], dict[str, None], tuple[NeededKey, ...]]] = [({}, {}, ())]
    for needed in conjunction.needed_keys:
        grown = [(literals, required, (*open_keys, needed)) for literals, required, open_keys in options]
        for name in names:
            if name in needed.excluded or (needed.language is not None and not matches(needed.language, name)):
                continue
            for literals, required, open_keys in options:
                own = [needed.literal] if needed.literal is not None else []
                merged = {**literals, name: [*literals.get(name, []), *own]}
                grown.append((merged, {**required, name: None}, open_keys))
        options = grown
    for literals, required, open_keys in options:
        if len(open_keys) > 1:
            raise UnenforceableError("two undeclared keys that must exist at once are not supported", open_keys[0].pointer)
        if any(len(one) > 1 for one in literals.values()):
            raise UnenforceableError("one key that breaks two rules at once is not supported", open_keys[0].pointer)
        flat = {name: one[0] for name, one in literals.items() if one}
        yield flat, required, open_keys[0] if open_keys else None


def _shape(
    solver: Solver,
    conjunction: Conjunction,
    groups: list[PropertyGroup],
    languages: list[Node],
    names: list[str],
    extra_literals: dict[str, Literal],
    required: dict[str, None],
    needed: NeededKey | None,
) -> ObjectShape | None:
    from constrained.schema.finish import goal_of, is_plainly_empty

    properties: list[Property] = []
    for name in names:
        literals = list(_literals_for(name, groups))
        if name in extra_literals:
            literals.append(extra_literals[name])
        goal = goal_of(literals)
        possible = name not in conjunction.absent and all(matches(language, name) for language in languages)
        if not possible or is_plainly_empty(goal):
            if name in required:
                return None
            continue
        properties.append(Property(name, goal, name in required))
    taken = sorted({*names, *conjunction.absent})
    base = [*languages, tree.repeat(tree.ANY_CHAR, 0, solver.limits.max_key_length)]
    if taken:
        base.append(tree.complement(tree.literals(taken)))
    extra = [KeyClass(tree.both([*parts, *base]), goal) for parts, goal in _key_classes(groups, conjunction)]
    needed_extra = None
    if needed is not None:
        needed_extra = _needed_class(needed, extra)
        if needed_extra is None:
            return None
    least, most = conjunction.min_properties, conjunction.max_properties
    if most is not None and most < max(least, len(required)):
        return None
    if least > len(properties) and not extra:
        return None
    pointer = next((conjunction.pointers[k] for k in ("minProperties", "maxProperties") if k in conjunction.pointers), "")
    return ObjectShape(tuple(properties), tuple(extra), least, most, needed_extra, pointer)


def _literals_for(name: str, groups: list[PropertyGroup]) -> Iterator[Literal]:
    for group in groups:
        found = [literal for language, literal in group.patterns if matches(language, name)]
        if name in group.properties:
            found.insert(0, group.properties[name])
        elif not found and group.additional is not None:
            found = [group.additional]
        yield from found


def _key_classes(groups: list[PropertyGroup], conjunction: Conjunction) -> list[tuple[list[Node], Goal]]:
    """Undeclared keys by the patterns they match; classes with the same values are one."""
    from constrained.schema.finish import goal_of, is_plainly_empty

    patterns = list(dict.fromkeys(language for group in groups for language, _ in group.patterns))
    patterns = [language for language in patterns if _listed(language) is None]
    subsets: list[tuple[Node, ...]] = [()]
    for language in patterns:
        subsets += [(*subset, language) for subset in subsets if is_empty(tree.both([*subset, language])) is not True]
        if len(subsets) > _MAX_KEY_CLASSES:
            pointer = conjunction.pointers.get("patternProperties", "")
            raise UnenforceableError("too many overlapping patternProperties", pointer)
    by_goal: dict[Goal, list[tuple[Node, ...]]] = {}
    for subset in subsets:
        goal = goal_of(
            literal
            for group in groups
            for literal in _class_literals(subset, group)
        )
        by_goal.setdefault(goal, []).append(subset)
    classes = []
    for goal, members in by_goal.items():
        if is_plainly_empty(goal):
            continue
        if len(by_goal) == 1:
            classes.append(([tree.ANYTHING], goal))
            continue
        classes.append(([tree.either(_exactly(subset, patterns) for subset in members)], goal))
    return [(parts, goal) for parts, goal in classes if parts[0] != tree.NOTHING]


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
    options = [
        KeyClass(tree.both([*wanted, one.language]), one.goal | ({needed.literal} if needed.literal else set()))
        for one in extra
    ]
    options = [one for one in options if is_empty(one.language) is not True]
    if len(options) > 1:
        raise UnenforceableError("a key that must exist and may match several patterns is not supported", needed.pointer)
    return options[0] if options else None

"""What each keyword of a schema that must hold adds to the conjunction."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from constrained.json_schema.errors import UnenforceableError
from constrained.json_schema.reading.context import Context, Handler
from constrained.json_schema.reading.document import unsupported
from constrained.json_schema.reading.positive_values import VALUE_HANDLERS
from constrained.json_schema.solving.conjunction import ATOMS
from constrained.json_schema.solving.shapes import Literal
from constrained.json_schema.solving.solver import Apply, Choice, Solver, Step, Work

_MAX_ANNOTATED_BRANCHES = 4


def expand_positive(solver: Solver, step: Step) -> list[Work]:
    """Work that a positive literal stands for, in the order of the schema's keywords."""
    value = step.literal.node.value
    if isinstance(value, bool):
        return [] if value else [Choice((), step.literal.node.pointer)]
    context = Context(solver, step)
    if "$ref" in value and context.node.ref_hides_neighbours:
        return list(context.reference("$ref"))
    work: list[Work] = []
    if "unevaluatedProperties" in value or "unevaluatedItems" in value:
        work += context.open_scope()
    for keyword in value:
        handler = _HANDLERS.get(keyword)
        if handler is not None:
            try:
                work += handler(context, value[keyword])
            except UnenforceableError as error:
                solver.give_up(error)
    return work


def _all_of(context: Context, value: list[Any]) -> list[Work]:
    return [context.in_place(context.child("allOf", i)) for i in range(len(value))]


def _any_of(context: Context, value: list[Any]) -> list[Work]:
    branches = [context.child("anyOf", i) for i in range(len(value))]
    if context.scopes and len(branches) > 1:
        # A key that any matching branch names counts as evaluated, so the branches that match together matter.
        if len(branches) > _MAX_ANNOTATED_BRANCHES:
            raise unsupported("anyOf with so many branches beside unevaluated… is not supported", context.node, "anyOf")
        subsets = [s for size in range(len(branches), 0, -1) for s in combinations(branches, size)]
        return [Choice([[context.in_place(one) for one in subset] for subset in subsets], context.pointer("anyOf"))]
    return [Choice([[context.in_place(one)] for one in branches], context.pointer("anyOf"))]


def _one_of(context: Context, value: list[Any]) -> list[Work]:
    branches = [context.child("oneOf", i) for i in range(len(value))]
    surroundings = _shallow_type(context)
    options: list[list[Work]] = []
    for index, branch in enumerate(branches):
        option: list[Work] = [context.in_place(branch)]
        for other_index, other in enumerate(branches):
            if other_index == index:
                continue
            if not _known_disjoint(context, [branch, other, *surroundings]):
                option.append(context.in_place(Literal(other.node, False)))
        options.append(option)
    return [Choice(options, context.pointer("oneOf"))]


def _shallow_type(context: Context) -> list[Literal]:
    types = context.value.get("type")
    if types is None:
        return []
    return [Literal(context.document.synthetic({"type": types}, context.pointer("type"), context.node), True)]


def _known_disjoint(context: Context, literals: list[Literal]) -> bool:
    if all(literal.node.value == literals[0].node.value for literal in literals[:2]):
        return False
    return context.solver.are_disjoint(*literals)


def _not(context: Context, value: Any) -> list[Work]:
    literal = context.child("not", is_positive=False)
    return [Step(literal, (), context.ancestors)]


def _if(context: Context, value: Any) -> list[Work]:
    if "then" not in context.value and "else" not in context.value and not context.scopes:
        return []
    holds: list[Work] = [*_presence(context, value), context.in_place(context.child("if"))]
    fails: list[Work] = [Step(context.child("if", is_positive=False), (), context.ancestors)]
    if "then" in context.value:
        holds.append(context.in_place(context.child("then")))
    if "else" in context.value:
        fails.append(context.in_place(context.child("else")))
    return [Choice([holds, fails], context.pointer("if"))]


def _presence(context: Context, condition: Any) -> list[Work]:
    """Part a condition on one optional property into "absent" and "present".

    It says no more than the condition does, but keeps a row of conditions on one property from multiplying: each then
    contradicts all others at once.
    """
    if not isinstance(condition, dict) or len(condition.get("properties", {})) != 1 or condition.get("required"):
        return []
    (name,) = condition["properties"]
    absent = Apply(lambda c: setattr(c, "absent", c.absent | {name}))
    present = Apply(lambda c: c.require(name))
    return [_unless_object(context, [[absent], [present]], "if")]


def _dependent_required(context: Context, value: dict[str, list[str]]) -> list[Work]:
    return [_names_depend(context, name, names, "dependentRequired") for name, names in value.items() if names]


def _names_depend(context: Context, name: str, names: list[str], keyword: str) -> Work:
    absent = Apply(lambda c: setattr(c, "absent", c.absent | {name}))
    present = Apply(lambda c: c.require(name, *names))
    return _unless_object(context, [[absent], [present]], keyword)


def _unless_object(context: Context, options: list[list[Work]], keyword: str) -> Work:
    """Alternatives that part objects only; other values keep one branch."""
    split: list[list[Work]] = [[Apply(lambda c: c.restrict(ATOMS - {"object"}))]]
    split += [[Apply(lambda c: c.restrict(frozenset({"object"}))), *option] for option in options]
    return Choice(split, context.pointer(keyword))


def _dependent_schemas(context: Context, value: dict[str, Any], keyword: str = "dependentSchemas") -> list[Work]:
    work: list[Work] = []
    for name, one in value.items():
        if isinstance(one, list | str):
            names = [one] if isinstance(one, str) else one
            work += [_names_depend(context, name, names, keyword)] if names else []
            continue
        absent = Apply(lambda c, name=name: setattr(c, "absent", c.absent | {name}))  # type: ignore[misc]
        present = Apply(lambda c, name=name: c.require(name))  # type: ignore[misc]
        schema = context.in_place(context.child(keyword, name))
        work.append(_unless_object(context, [[absent], [present, schema]], keyword))
    return work


def _dependencies(context: Context, value: dict[str, Any]) -> list[Work]:
    return _dependent_schemas(context, value, "dependencies")


def _reference_handler(keyword: str) -> Handler:
    return lambda context, _: list(context.reference(keyword))


_HANDLERS: dict[str, Handler] = VALUE_HANDLERS | {
    "$ref": _reference_handler("$ref"),
    "$dynamicRef": _reference_handler("$dynamicRef"),
    "$recursiveRef": _reference_handler("$recursiveRef"),
    "allOf": _all_of,
    "anyOf": _any_of,
    "dependencies": _dependencies,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "if": _if,
    "not": _not,
    "oneOf": _one_of,
}

"""What it takes for a schema not to hold: one of its keywords must fail."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from itertools import combinations
from typing import Any

from constrained.json_schema.reading.document import SchemaNode, unsupported
from constrained.json_schema.reading.positive_values import (
    item_group,
    pattern_language,
    property_group,
    scalar_parts,
    structure_of,
)
from constrained.json_schema.solving.conjunction import (
    ATOMS,
    NUMBERS,
    Conjunction,
    ItemGroup,
    NeededKey,
    PropertyGroup,
    atoms_of,
)
from constrained.json_schema.solving.numbers import Bound
from constrained.json_schema.solving.shapes import Contains, Literal
from constrained.json_schema.solving.solver import Apply, Choice, Solver, Step, Work
from constrained.patterns import tree

_OBJECT = frozenset({"object"})
_ARRAY = frozenset({"array"})
_STRING = frozenset({"string"})


def expand_negative(solver: Solver, step: Step) -> list[Work]:
    """Work that a negated literal stands for: one alternative for each way in which the schema can fail."""
    node = step.literal.node
    if isinstance(node.value, bool):
        return [Choice((), node.pointer)] if node.value else []
    context = _Context(solver, node, step)
    if "$ref" in node.value and node.ref_hides_neighbours:
        return [Choice(context.reference(node.value["$ref"]), node.pointer)]
    options: list[list[Work]] = []
    done: set[Callable[[_Context, Any], Options]] = set()
    for keyword, value in node.value.items():
        handler = _HANDLERS.get(keyword)
        if handler is None or handler in done:
            continue
        if handler in (_properties, _items):  # one reading covers all the keywords of the group
            done.add(handler)
        options += handler(context, value)
    return [Choice(options, node.pointer)]


class _Context:
    def __init__(self, solver: Solver, node: SchemaNode, step: Step) -> None:
        self.solver = solver
        self.node = node
        assert isinstance(node.value, dict)
        self.value: dict[str, Any] = node.value
        self.ancestors = step.ancestors | {node}

    def step(self, *path: str | int, is_positive: bool) -> Step:
        return Step(self.literal(*path, is_positive=is_positive), (), self.ancestors)

    def literal(self, *path: str | int, is_positive: bool) -> Literal:
        return Literal(self.solver.document.child(self.node, *path), is_positive)

    def reference(self, reference: str) -> list[list[Work]]:
        target = self.solver.document.resolve(self.node, reference, f"{self.node.pointer}/$ref")
        return [[Step(Literal(target, False), (), self.ancestors)]]

    def refuse(self, keyword: str) -> list[list[Work]]:
        raise unsupported(
            f"the opposite of {keyword!r} is needed here (for not, if or oneOf) and cannot be enforced",
            self.node,
            keyword,
        )


Options = list[list[Work]]


def _when(atoms: frozenset[str], change: Callable[[Conjunction], None] | None = None) -> list[Work]:
    def apply(conjunction: Conjunction) -> None:
        conjunction.restrict(atoms)
        if change is not None:
            change(conjunction)

    return [Apply(apply)]


def _negated(literal: Literal) -> Literal:
    return Literal(literal.node, not literal.is_positive)


def _type(context: _Context, value: Any) -> Options:
    return [_when(ATOMS - atoms_of(value))]


def _enum(context: _Context, values: list[Any], keyword: str = "enum") -> Options:
    atoms, numbers, strings = scalar_parts([one for one in values if not isinstance(one, dict | list)])

    def exclude(conjunction: Conjunction) -> None:
        conjunction.restrict(ATOMS - (atoms & {"null", "true", "false"}))
        conjunction.excluded_numbers |= numbers
        conjunction.excluded_strings |= frozenset(strings)

    work: list[Work] = [Apply(exclude)]
    pointer = f"{context.node.pointer}/{keyword}"
    for one in values:
        if isinstance(one, dict | list):
            node = context.solver.document.synthetic(structure_of(one), pointer, context.node)
            work.append(Step(Literal(node, False)))
    return [work]


def _const(context: _Context, value: Any) -> Options:
    return _enum(context, [value], "const")


def _all_of(context: _Context, value: list[Any]) -> Options:
    return [[context.step("allOf", i, is_positive=False)] for i in range(len(value))]


def _any_of(context: _Context, value: list[Any]) -> Options:
    return [[context.step("anyOf", i, is_positive=False) for i in range(len(value))]]


def _one_of(context: _Context, value: list[Any]) -> Options:
    none: list[Work] = [context.step("oneOf", i, is_positive=False) for i in range(len(value))]
    options: Options = [none]
    for pair in combinations(range(len(value)), 2):
        literals = [context.literal("oneOf", i, is_positive=True) for i in pair]
        if not context.solver.are_disjoint(*literals):
            options.append([Step(one, (), context.ancestors) for one in literals])
    return options


def _not(context: _Context, value: Any) -> Options:
    return [[context.step("not", is_positive=True)]]


def _if(context: _Context, value: Any) -> Options:
    options: Options = []
    if "then" in context.value:
        options.append([context.step("if", is_positive=True), context.step("then", is_positive=False)])
    if "else" in context.value:
        options.append([context.step("if", is_positive=False), context.step("else", is_positive=False)])
    return options


def _required(context: _Context, value: list[str]) -> Options:
    return [_without(name) for name in value]


def _without(name: str, *present: str) -> list[Work]:
    def change(conjunction: Conjunction) -> None:
        conjunction.absent |= {name}
        conjunction.require(*present)

    return _when(_OBJECT, change)


def _dependent_required(context: _Context, value: dict[str, list[str]]) -> Options:
    return [_without(needed, name) for name, names in value.items() for needed in names if needed != name]


def _dependent_schemas(context: _Context, value: dict[str, Any], keyword: str = "dependentSchemas") -> Options:
    options: Options = []
    for name, one in value.items():
        if isinstance(one, list | str):
            names = [one] if isinstance(one, str) else one
            options += [_without(needed, name) for needed in names if needed != name]
        else:
            work = _when(_OBJECT, lambda c, name=name: c.require(name))  # type: ignore[misc]
            options.append([*work, context.step(keyword, name, is_positive=False)])
    return options


def _dependencies(context: _Context, value: dict[str, Any]) -> Options:
    return _dependent_schemas(context, value, "dependencies")


def _properties(context: _Context, _: Any) -> Options:
    group = property_group(context.solver, context.node)
    options: Options = []
    for name, literal in group.properties.items():
        if literal.node.value is True:
            continue
        part = PropertyGroup({name: _negated(literal)})
        options.append(_when(_OBJECT, _adds_property(name, part)))
    pointer = context.node.pointer
    for language, literal in group.patterns:
        if literal.node.value is not True:
            needed = NeededKey(language, frozenset(), (_negated(literal),), f"{pointer}/patternProperties")
            options.append(_when(_OBJECT, _adds_needed(needed)))
    if group.additional is not None and group.additional.node.value is not True:
        others = tree.complement(tree.either(language for language, _ in group.patterns)) if group.patterns else None
        place = f"{pointer}/additionalProperties"
        needed = NeededKey(others, frozenset(group.properties), (_negated(group.additional),), place)
        options.append(_when(_OBJECT, _adds_needed(needed)))
    return options


def _adds_property(name: str, part: PropertyGroup) -> Callable[[Conjunction], None]:
    def change(conjunction: Conjunction) -> None:
        conjunction.require(name)
        conjunction.property_groups += (part,)

    return change


def _adds_needed(needed: NeededKey) -> Callable[[Conjunction], None]:
    def change(conjunction: Conjunction) -> None:
        conjunction.needed_keys += (needed,)

    return change


def _property_names(context: _Context, value: Any) -> Options:
    from constrained.json_schema.solving.finish import string_language

    goal = frozenset({context.literal("propertyNames", is_positive=False)})
    language = string_language(context.solver, goal)
    needed = NeededKey(language, frozenset(), (), f"{context.node.pointer}/propertyNames")
    return [_when(_OBJECT, _adds_needed(needed))]


def _items(context: _Context, _: Any) -> Options:
    group = item_group(context.solver, context.node)
    options: Options = []
    for index, literal in enumerate(group.prefix):
        if literal.node.value is not True:
            anything = Literal(context.solver.document.synthetic(True, "", context.node), True)
            part = ItemGroup((*([anything] * index), _negated(literal)))
            options.append(_when(_ARRAY, _adds_items(part, index + 1)))
    if group.rest is not None and group.rest.node.value is not True:
        goal = frozenset({_negated(group.rest)})
        one = Contains(goal, 1, None, len(group.prefix), f"{context.node.pointer}/items")
        options.append(_when(_ARRAY, _adds_contains(one)))
    return options


def _adds_items(part: ItemGroup, least: int) -> Callable[[Conjunction], None]:
    def change(conjunction: Conjunction) -> None:
        conjunction.item_groups += (part,)
        conjunction.limit_items(low=least)

    return change


def _adds_contains(one: Contains) -> Callable[[Conjunction], None]:
    def change(conjunction: Conjunction) -> None:
        conjunction.contains += (one,)

    return change


def _contains(context: _Context, _: Any) -> Options:
    goal = frozenset({context.literal("contains", is_positive=True)})
    low = int(context.value.get("minContains", 1))
    high = context.value.get("maxContains")
    place = f"{context.node.pointer}/contains"
    options: Options = []
    if low > 0:
        options.append(_when(_ARRAY, _adds_contains(Contains(goal, 0, low - 1, pointer=place))))
    if high is not None:
        options.append(_when(_ARRAY, _adds_contains(Contains(goal, int(high) + 1, None, pointer=place))))
    return options


def _pattern(context: _Context, value: str) -> Options:
    language = tree.complement(pattern_language(context.solver, value, context.node, "pattern"))

    def change(conjunction: Conjunction) -> None:
        conjunction.languages += (language,)

    return [_when(_STRING, change)]


def _format(context: _Context, value: str) -> Options:
    from constrained.json_schema.reading.formats import UNENFORCED_FORMATS, format_language

    known = format_language(value) is not None or value in UNENFORCED_FORMATS
    return context.refuse("format") if known else []


def _minimum(context: _Context, value: Any) -> Options:
    bound = Bound(Decimal(value), context.value.get("exclusiveMinimum") is not True)
    return [_when(NUMBERS, lambda c: c.lower_high(bound))]


def _maximum(context: _Context, value: Any) -> Options:
    bound = Bound(Decimal(value), context.value.get("exclusiveMaximum") is not True)
    return [_when(NUMBERS, lambda c: c.raise_low(bound))]


def _exclusive_minimum(context: _Context, value: Any) -> Options:
    if isinstance(value, bool):
        return []
    bound = Bound(Decimal(value))
    return [_when(NUMBERS, lambda c: c.lower_high(bound))]


def _exclusive_maximum(context: _Context, value: Any) -> Options:
    if isinstance(value, bool):
        return []
    bound = Bound(Decimal(value))
    return [_when(NUMBERS, lambda c: c.raise_low(bound))]


def _multiple_of(context: _Context, value: Any) -> Options:
    step = Decimal(value)

    def change(conjunction: Conjunction) -> None:
        conjunction.not_multiples += (step,)
        conjunction.pointers["multipleOf"] = f"{context.node.pointer}/multipleOf"

    return [_when(NUMBERS, change)]


def _below(atoms: frozenset[str], limit: str) -> Callable[[_Context, Any], Options]:
    def handler(context: _Context, value: Any) -> Options:
        high = int(value) - 1
        return [] if high < 0 else [_when(atoms, lambda c: getattr(c, limit)(high=high))]

    return handler


def _above(atoms: frozenset[str], limit: str) -> Callable[[_Context, Any], Options]:
    return lambda context, value: [_when(atoms, lambda c: getattr(c, limit)(low=int(value) + 1))]


def _unique_items(context: _Context, value: bool) -> Options:
    return context.refuse("uniqueItems") if value else []


def _refused(keyword: str) -> Callable[[_Context, Any], Options]:
    return lambda context, _: context.refuse(keyword)


_HANDLERS: dict[str, Callable[[_Context, Any], Options]] = {
    "$dynamicRef": _refused("$dynamicRef"),
    "$recursiveRef": _refused("$recursiveRef"),
    "$ref": lambda context, value: context.reference(value),
    "additionalItems": _items,
    "additionalProperties": _properties,
    "allOf": _all_of,
    "anyOf": _any_of,
    "const": _const,
    "contains": _contains,
    "dependencies": _dependencies,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "enum": _enum,
    "exclusiveMaximum": _exclusive_maximum,
    "exclusiveMinimum": _exclusive_minimum,
    "format": _format,
    "if": _if,
    "items": _items,
    "maximum": _maximum,
    "maxItems": _above(_ARRAY, "limit_items"),
    "maxLength": _above(_STRING, "limit_length"),
    "maxProperties": _above(_OBJECT, "limit_properties"),
    "minimum": _minimum,
    "minItems": _below(_ARRAY, "limit_items"),
    "minLength": _below(_STRING, "limit_length"),
    "minProperties": _below(_OBJECT, "limit_properties"),
    "multipleOf": _multiple_of,
    "not": _not,
    "oneOf": _one_of,
    "pattern": _pattern,
    "patternProperties": _properties,
    "prefixItems": _items,
    "properties": _properties,
    "propertyNames": _property_names,
    "required": _required,
    "type": _type,
    "unevaluatedItems": _refused("unevaluatedItems"),
    "unevaluatedProperties": _refused("unevaluatedProperties"),
    "uniqueItems": _unique_items,
}

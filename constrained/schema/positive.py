"""What each keyword of a schema that must hold adds to the conjunction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from itertools import combinations
from typing import Any

from constrained.schema import keywords
from constrained.schema.conjunction import ATOMS, SCALARS, Conjunction, ItemGroup, PropertyGroup, Unevaluated, atoms_of
from constrained.schema.document import SchemaNode, unsupported
from constrained.schema.errors import SchemaError, UnenforceableError
from constrained.schema.formats import UNENFORCED_FORMATS, format_language
from constrained.schema.numbers import Bound
from constrained.schema.pattern import tree
from constrained.schema.pattern.language import search_language
from constrained.schema.pattern.parser import PatternSyntaxError, PatternUnsupportedError
from constrained.schema.pattern.tree import Node
from constrained.schema.shapes import Contains, Literal
from constrained.schema.solver import Apply, Choice, Solver, Step, Work

_MAX_ANNOTATED_BRANCHES = 4


def expand_positive(solver: Solver, step: Step) -> list[Work]:
    """Work that a positive literal stands for, in the order of the schema's keywords."""
    value = step.literal.node.value
    if isinstance(value, bool):
        return [] if value else [Choice((), step.literal.node.pointer)]
    context = _Context(solver, step)
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


class _Context:
    def __init__(self, solver: Solver, step: Step) -> None:
        self.solver = solver
        self.document = solver.document
        self.node: SchemaNode = step.literal.node
        assert isinstance(self.node.value, dict)
        self.value: dict[str, Any] = self.node.value
        self.scopes = step.scopes
        self.ancestors = step.ancestors | {self.node}

    def pointer(self, keyword: str) -> str:
        return f"{self.node.pointer}/{keyword}"

    def child(self, *path: str | int, is_positive: bool = True) -> Literal:
        return Literal(self.document.child(self.node, *path), is_positive)

    def in_place(self, literal: Literal) -> Step:
        return Step(literal, self.scopes, self.ancestors)

    def limit(self, change: Callable[[Conjunction], None], keyword: str) -> list[Work]:
        """A change whose place is remembered for messages."""

        def apply(conjunction: Conjunction) -> None:
            conjunction.pointers[keyword] = self.pointer(keyword)
            change(conjunction)

        return [Apply(apply)]

    def open_scope(self) -> list[Work]:
        """Everything applied in place from here counts as evaluated for ``unevaluated…``."""
        scope, outer = self.solver.new_scope(), self.scopes
        self.scopes = (*outer, scope)
        work: list[Work] = []
        if "unevaluatedProperties" in self.value:
            properties = Unevaluated(scope, outer, self.child("unevaluatedProperties"))
            work.append(Apply(lambda c: setattr(c, "unevaluated_properties", (*c.unevaluated_properties, properties))))
        if "unevaluatedItems" in self.value:
            items = Unevaluated(scope, outer, self.child("unevaluatedItems"))
            work.append(Apply(lambda c: setattr(c, "unevaluated_items", (*c.unevaluated_items, items))))
        return work

    def reference(self, keyword: str) -> Iterator[Work]:
        reference = self.value[keyword]
        target = self.document.resolve(self.node, reference, self.pointer(keyword))
        if keyword != "$ref":
            target = self.dynamic_target(keyword, reference, target)
        yield self.in_place(Literal(target, True))

    def dynamic_target(self, keyword: str, reference: str, target: SchemaNode) -> SchemaNode:
        name = reference.partition("#")[2]
        if keyword == "$recursiveRef":
            if any("$recursiveAnchor" in n.value for n in (self.document.root, target) if isinstance(n.value, dict)):
                raise unsupported("$recursiveRef with $recursiveAnchor is not supported; use $ref", self.node, keyword)
            return target
        is_dynamic = isinstance(target.value, dict) and target.value.get("$dynamicAnchor") == name
        if is_dynamic and len(self.document.dynamic_anchors.get(name, ())) > 1:
            raise unsupported(
                f"several places declare $dynamicAnchor {name!r}, so the target depends on the path; use $ref",
                self.node,
                keyword,
            )
        return target


def pattern_language(solver: Solver, pattern: str, node: SchemaNode, keyword: str) -> Node:
    """Language of a ``pattern``; errors carry the keyword's pointer."""
    if len(pattern.encode()) > solver.limits.max_pattern_bytes:
        raise SchemaError("the pattern is too long", f"{node.pointer}/{keyword}")
    try:
        language = search_language(pattern)
    except PatternUnsupportedError as error:
        raise unsupported(f"the pattern {pattern[:80]!r} cannot be enforced: {error}", node, keyword) from None
    except PatternSyntaxError as error:
        message = f"the pattern {pattern[:80]!r} is no regular expression: {error}"
        raise SchemaError(message, f"{node.pointer}/{keyword}") from None
    if tree.expanded_size(language) > solver.limits.max_pattern_states:
        raise unsupported(f"the pattern {pattern[:80]!r} repeats too much", node, keyword)
    return language


def _type(context: _Context, value: Any) -> list[Work]:
    atoms = atoms_of(value)
    return [Apply(lambda c: c.restrict(atoms))]


def scalar_parts(values: list[Any]) -> tuple[frozenset[str], frozenset[Decimal], tuple[str, ...]]:
    """Atoms, numbers and strings among enumerated values."""
    atoms: set[str] = set()
    numbers: set[Decimal] = set()
    strings: dict[str, None] = {}
    for one in values:
        if isinstance(one, str):
            atoms.add("string")
            strings[one] = None
        elif keywords.is_number(one):
            number = Decimal(one)
            atoms.add("integer" if number == number.to_integral_value() else "fraction")
            numbers.add(number)
        else:
            atoms.add("null" if one is None else "true" if one else "false")
    return frozenset(atoms), frozenset(numbers), tuple(strings)


def structure_of(value: dict[str, Any] | list[Any]) -> dict[str, Any]:
    """Schema of exactly one object or array."""
    if isinstance(value, dict):
        return {
            "type": "object",
            "properties": {name: {"const": one} for name, one in value.items()},
            "required": list(value),
            "additionalProperties": False,
        }
    schema: dict[str, Any] = {"type": "array", "minItems": len(value), "maxItems": len(value)}
    if value:
        schema["prefixItems"] = [{"const": one} for one in value]
    return schema


def _enum(context: _Context, values: list[Any], keyword: str = "enum") -> list[Work]:
    scalars = [one for one in values if not isinstance(one, dict | list)]
    atoms, numbers, strings = scalar_parts(scalars)

    def restrict(conjunction: Conjunction) -> None:
        conjunction.restrict(atoms & SCALARS)
        conjunction.allow_numbers(numbers)
        conjunction.allow_strings(strings)

    options: list[list[Work]] = [[Apply(restrict)]] if scalars else []
    pointer = context.pointer(keyword)
    for one in values:
        if isinstance(one, dict | list):
            node = context.document.synthetic(structure_of(one), pointer, context.node)
            options.append([Step(Literal(node, True))])
    return list(options[0]) if len(options) == 1 else [Choice(options, pointer)]


def _const(context: _Context, value: Any) -> list[Work]:
    return _enum(context, [value], "const")


def _all_of(context: _Context, value: list[Any]) -> list[Work]:
    return [context.in_place(context.child("allOf", i)) for i in range(len(value))]


def _any_of(context: _Context, value: list[Any]) -> list[Work]:
    branches = [context.child("anyOf", i) for i in range(len(value))]
    if context.scopes and len(branches) > 1:
        # A key that any matching branch names counts as evaluated, so the branches that match together matter.
        if len(branches) > _MAX_ANNOTATED_BRANCHES:
            raise unsupported("anyOf with so many branches beside unevaluated… is not supported", context.node, "anyOf")
        subsets = [s for size in range(len(branches), 0, -1) for s in combinations(branches, size)]
        return [Choice([[context.in_place(one) for one in subset] for subset in subsets], context.pointer("anyOf"))]
    return [Choice([[context.in_place(one)] for one in branches], context.pointer("anyOf"))]


def _one_of(context: _Context, value: list[Any]) -> list[Work]:
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


def _shallow_type(context: _Context) -> list[Literal]:
    types = context.value.get("type")
    if types is None:
        return []
    return [Literal(context.document.synthetic({"type": types}, context.pointer("type"), context.node), True)]


def _known_disjoint(context: _Context, literals: list[Literal]) -> bool:
    if all(literal.node.value == literals[0].node.value for literal in literals[:2]):
        return False
    return context.solver.are_disjoint(*literals)


def _not(context: _Context, value: Any) -> list[Work]:
    literal = context.child("not", is_positive=False)
    return [Step(literal, (), context.ancestors)]


def _if(context: _Context, value: Any) -> list[Work]:
    if "then" not in context.value and "else" not in context.value and not context.scopes:
        return []
    holds: list[Work] = [*_presence(context, value), context.in_place(context.child("if"))]
    fails: list[Work] = [Step(context.child("if", is_positive=False), (), context.ancestors)]
    if "then" in context.value:
        holds.append(context.in_place(context.child("then")))
    if "else" in context.value:
        fails.append(context.in_place(context.child("else")))
    return [Choice([holds, fails], context.pointer("if"))]


def _presence(context: _Context, condition: Any) -> list[Work]:
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


def _dependent_required(context: _Context, value: dict[str, list[str]]) -> list[Work]:
    return [_names_depend(context, name, names, "dependentRequired") for name, names in value.items() if names]


def _names_depend(context: _Context, name: str, names: list[str], keyword: str) -> Work:
    absent = Apply(lambda c: setattr(c, "absent", c.absent | {name}))
    present = Apply(lambda c: c.require(name, *names))
    return _unless_object(context, [[absent], [present]], keyword)


def _unless_object(context: _Context, options: list[list[Work]], keyword: str) -> Work:
    """Alternatives that part objects only; other values keep one branch."""
    split: list[list[Work]] = [[Apply(lambda c: c.restrict(ATOMS - {"object"}))]]
    split += [[Apply(lambda c: c.restrict(frozenset({"object"}))), *option] for option in options]
    return Choice(split, context.pointer(keyword))


def _dependent_schemas(context: _Context, value: dict[str, Any], keyword: str = "dependentSchemas") -> list[Work]:
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


def _dependencies(context: _Context, value: dict[str, Any]) -> list[Work]:
    return _dependent_schemas(context, value, "dependencies")


def _properties(context: _Context, _: Any) -> list[Work]:
    group = property_group(context.solver, context.node)
    group = replace(group, scopes=context.scopes)
    return [Apply(lambda c: setattr(c, "property_groups", (*c.property_groups, group)))]


def property_group(solver: Solver, node: SchemaNode) -> PropertyGroup:
    """The three keywords on properties of one schema, read together."""
    assert isinstance(node.value, dict)
    value, child = node.value, solver.document.child
    patterns = []
    for pattern in value.get("patternProperties", {}):
        language = pattern_language(solver, pattern, node, "patternProperties")
        patterns.append((language, Literal(child(node, "patternProperties", pattern), True)))
    return PropertyGroup(
        {name: Literal(child(node, "properties", name), True) for name in value.get("properties", {})},
        tuple(patterns),
        Literal(child(node, "additionalProperties"), True) if "additionalProperties" in value else None,
    )


def _first_of(*names: str) -> Callable[[Callable[[_Context, Any], list[Work]]], dict[str, Handler]]:
    """Keywords that are read together, at the place of the first of them."""

    def build(handler: Callable[[_Context, Any], list[Work]]) -> dict[str, Handler]:
        def guarded(context: _Context, value: Any) -> list[Work]:
            first = next(name for name in context.value if name in names)
            return handler(context, value) if context.value[first] is value else []

        return dict.fromkeys(names, guarded)

    return build


def _property_names(context: _Context, value: Any) -> list[Work]:
    literal = context.child("propertyNames")
    return context.limit(lambda c: setattr(c, "name_literals", (*c.name_literals, literal)), "propertyNames")


def item_group(solver: Solver, node: SchemaNode) -> ItemGroup:
    """The keywords on items of one schema, read together; lists in ``items`` are older drafts' ``prefixItems``."""
    assert isinstance(node.value, dict)
    value, child = node.value, solver.document.child
    prefix_name = "items" if isinstance(value.get("items"), list) else "prefixItems"
    rest_name = "additionalItems" if prefix_name == "items" else "items"
    prefix = tuple(Literal(child(node, prefix_name, i), True) for i in range(len(value.get(prefix_name, []))))
    return ItemGroup(prefix, Literal(child(node, rest_name), True) if rest_name in value else None)


def _items(context: _Context, _: Any) -> list[Work]:
    group = replace(item_group(context.solver, context.node), scopes=context.scopes)
    return [Apply(lambda c: setattr(c, "item_groups", (*c.item_groups, group)))]


def _contains(context: _Context, _: Any) -> list[Work]:
    low = int(context.value.get("minContains", 1))
    high = context.value.get("maxContains")
    goal = frozenset({context.child("contains")})
    if low == 0 and high is None:
        return []
    if context.scopes and "unevaluatedItems" in context.value:
        raise unsupported("contains beside unevaluatedItems is not supported", context.node, "contains")
    one = Contains(goal, low, None if high is None else int(high), pointer=context.pointer("contains"))
    return context.limit(lambda c: setattr(c, "contains", (*c.contains, one)), "contains")


def _pattern(context: _Context, value: str) -> list[Work]:
    language = pattern_language(context.solver, value, context.node, "pattern")
    return context.limit(lambda c: setattr(c, "languages", (*c.languages, language)), "pattern")


def _format(context: _Context, value: str) -> list[Work]:
    language = format_language(value)
    if language is not None:
        return context.limit(lambda c: setattr(c, "languages", (*c.languages, language)), "format")
    if value in UNENFORCED_FORMATS:
        raise unsupported(f"the format {value!r} cannot be enforced", context.node, "format")
    context.solver.notice(context.pointer("format"), f"no draft defines the format {value!r}: taken as an annotation")
    return []


def _content(context: _Context, value: Any, keyword: str = "contentMediaType") -> list[Work]:
    """Assertions up to draft 7, where a validator may make them; annotations since."""
    if context.node.draft in (2019, 2020):
        return []
    raise unsupported(
        "the content of a string is not checked; leave this out, or name a newer $schema", context.node, keyword
    )


def _minimum(context: _Context, value: Any) -> list[Work]:
    bound = Bound(Decimal(value), context.value.get("exclusiveMinimum") is True)
    return context.limit(lambda c: c.raise_low(bound), "minimum")


def _maximum(context: _Context, value: Any) -> list[Work]:
    bound = Bound(Decimal(value), context.value.get("exclusiveMaximum") is True)
    return context.limit(lambda c: c.lower_high(bound), "maximum")


def _exclusive_minimum(context: _Context, value: Any) -> list[Work]:
    if isinstance(value, bool):  # draft 4: a flag of minimum
        return []
    bound = Bound(Decimal(value), True)
    return context.limit(lambda c: c.raise_low(bound), "exclusiveMinimum")


def _exclusive_maximum(context: _Context, value: Any) -> list[Work]:
    if isinstance(value, bool):
        return []
    bound = Bound(Decimal(value), True)
    return context.limit(lambda c: c.lower_high(bound), "exclusiveMaximum")


def _multiple_of(context: _Context, value: Any) -> list[Work]:
    step = Decimal(value)
    return context.limit(lambda c: setattr(c, "multiples", (*c.multiples, step)), "multipleOf")


def _unique_items(context: _Context, value: bool) -> list[Work]:
    return context.limit(lambda c: setattr(c, "is_unique", True), "uniqueItems") if value else []


def _reference_handler(keyword: str) -> Handler:
    return lambda context, _: list(context.reference(keyword))


Handler = Callable[[_Context, Any], list[Work]]

_HANDLERS: dict[str, Handler] = {
    "$ref": _reference_handler("$ref"),
    "$dynamicRef": _reference_handler("$dynamicRef"),
    "$recursiveRef": _reference_handler("$recursiveRef"),
    "allOf": _all_of,
    "anyOf": _any_of,
    "const": _const,
    "contains": _contains,
    "contentEncoding": lambda x, v: _content(x, v, "contentEncoding"),
    "contentMediaType": _content,
    "dependencies": _dependencies,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "enum": _enum,
    "exclusiveMaximum": _exclusive_maximum,
    "exclusiveMinimum": _exclusive_minimum,
    "format": _format,
    "if": _if,
    "maximum": _maximum,
    "maxItems": lambda x, v: x.limit(lambda c: c.limit_items(high=int(v)), "maxItems"),
    "maxLength": lambda x, v: x.limit(lambda c: c.limit_length(high=int(v)), "maxLength"),
    "maxProperties": lambda x, v: x.limit(lambda c: c.limit_properties(high=int(v)), "maxProperties"),
    "minimum": _minimum,
    "minItems": lambda x, v: x.limit(lambda c: c.limit_items(low=int(v)), "minItems"),
    "minLength": lambda x, v: x.limit(lambda c: c.limit_length(low=int(v)), "minLength"),
    "minProperties": lambda x, v: x.limit(lambda c: c.limit_properties(low=int(v)), "minProperties"),
    "multipleOf": _multiple_of,
    "not": _not,
    "oneOf": _one_of,
    "pattern": _pattern,
    "propertyNames": _property_names,
    "required": lambda x, v: x.limit(lambda c: c.require(*v), "required"),
    "type": _type,
    "uniqueItems": _unique_items,
    **_first_of("properties", "patternProperties", "additionalProperties")(_properties),
    **_first_of("items", "prefixItems", "additionalItems")(_items),
}

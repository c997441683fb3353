"""What the keywords on values themselves add: types, numbers, strings, items, properties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

from constrained.json_schema.errors import SchemaError
from constrained.json_schema.reading import keywords
from constrained.json_schema.reading.context import Context, Handler
from constrained.json_schema.reading.document import SchemaNode, unsupported
from constrained.json_schema.reading.formats import UNENFORCED_FORMATS, format_language
from constrained.json_schema.solving.conjunction import SCALARS, Conjunction, ItemGroup, PropertyGroup, atoms_of
from constrained.json_schema.solving.numbers import Bound
from constrained.json_schema.solving.shapes import Contains, Literal
from constrained.json_schema.solving.solver import Apply, Choice, Solver, Step, Work
from constrained.patterns import tree
from constrained.patterns.language import search_language
from constrained.patterns.parser import PatternSyntaxError, PatternUnsupportedError
from constrained.patterns.tree import Node


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


def _type(context: Context, value: Any) -> list[Work]:
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


def _enum(context: Context, values: list[Any], keyword: str = "enum") -> list[Work]:
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


def _const(context: Context, value: Any) -> list[Work]:
    return _enum(context, [value], "const")


def _properties(context: Context, _: Any) -> list[Work]:
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


def _first_of(*names: str) -> Callable[[Callable[[Context, Any], list[Work]]], dict[str, Handler]]:
    """Keywords that are read together, at the place of the first of them."""

    def build(handler: Callable[[Context, Any], list[Work]]) -> dict[str, Handler]:
        def guarded(context: Context, value: Any) -> list[Work]:
            first = next(name for name in context.value if name in names)
            return handler(context, value) if context.value[first] is value else []

        return dict.fromkeys(names, guarded)

    return build


def _property_names(context: Context, value: Any) -> list[Work]:
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


def _items(context: Context, _: Any) -> list[Work]:
    group = replace(item_group(context.solver, context.node), scopes=context.scopes)
    return [Apply(lambda c: setattr(c, "item_groups", (*c.item_groups, group)))]


def _contains(context: Context, _: Any) -> list[Work]:
    low = int(context.value.get("minContains", 1))
    high = context.value.get("maxContains")
    literal = context.child("contains")
    work: list[Work] = []
    if context.node.draft != 2019:  # where contains is no annotation
        contained = (literal, context.scopes)
        work.append(Apply(lambda c: setattr(c, "contained", (*c.contained, contained))))
    if low > 0 or high is not None:
        goal = frozenset({literal})
        one = Contains(goal, low, None if high is None else int(high), pointer=context.pointer("contains"))
        work += context.limit(lambda c: setattr(c, "contains", (*c.contains, one)), "contains")
    return work


def _pattern(context: Context, value: str) -> list[Work]:
    language = pattern_language(context.solver, value, context.node, "pattern")
    return context.limit(lambda c: setattr(c, "languages", (*c.languages, language)), "pattern")


def _format(context: Context, value: str) -> list[Work]:
    language = format_language(value, context.solver.limits.number_digits)
    if language is not None:
        return context.limit(lambda c: setattr(c, "languages", (*c.languages, language)), "format")
    if value in UNENFORCED_FORMATS:
        raise unsupported(f"the format {value!r} cannot be enforced", context.node, "format")
    context.solver.notice(context.pointer("format"), f"no draft defines the format {value!r}: taken as an annotation")
    return []


def _content(context: Context, value: Any, keyword: str = "contentMediaType") -> list[Work]:
    """Assertions up to draft 7, where a validator may make them; annotations since."""
    if context.node.draft not in keywords.LEGACY_DRAFTS:
        return []
    raise unsupported(
        "the content of a string is not checked; leave this out, or name a newer $schema", context.node, keyword
    )


def _minimum(context: Context, value: Any) -> list[Work]:
    bound = Bound(Decimal(value), context.value.get("exclusiveMinimum") is True)
    return context.limit(lambda c: c.raise_low(bound), "minimum")


def _maximum(context: Context, value: Any) -> list[Work]:
    bound = Bound(Decimal(value), context.value.get("exclusiveMaximum") is True)
    return context.limit(lambda c: c.lower_high(bound), "maximum")


def _exclusive_minimum(context: Context, value: Any) -> list[Work]:
    if isinstance(value, bool):  # draft 4: a flag of minimum
        return []
    bound = Bound(Decimal(value), True)
    return context.limit(lambda c: c.raise_low(bound), "exclusiveMinimum")


def _exclusive_maximum(context: Context, value: Any) -> list[Work]:
    if isinstance(value, bool):
        return []
    bound = Bound(Decimal(value), True)
    return context.limit(lambda c: c.lower_high(bound), "exclusiveMaximum")


def _multiple_of(context: Context, value: Any) -> list[Work]:
    step = Decimal(value)
    return context.limit(lambda c: setattr(c, "multiples", (*c.multiples, step)), "multipleOf")


def _unique_items(context: Context, value: bool) -> list[Work]:
    return context.limit(lambda c: setattr(c, "is_unique", True), "uniqueItems") if value else []


VALUE_HANDLERS: dict[str, Handler] = {
    "const": _const,
    "contains": _contains,
    "contentEncoding": lambda x, v: _content(x, v, "contentEncoding"),
    "contentMediaType": _content,
    "enum": _enum,
    "exclusiveMaximum": _exclusive_maximum,
    "exclusiveMinimum": _exclusive_minimum,
    "format": _format,
    "maximum": _maximum,
    "maxItems": lambda x, v: x.limit(lambda c: c.limit_items(high=int(v)), "maxItems"),
    "maxLength": lambda x, v: x.limit(lambda c: c.limit_length(high=int(v)), "maxLength"),
    "maxProperties": lambda x, v: x.limit(lambda c: c.limit_properties(high=int(v)), "maxProperties"),
    "minimum": _minimum,
    "minItems": lambda x, v: x.limit(lambda c: c.limit_items(low=int(v)), "minItems"),
    "minLength": lambda x, v: x.limit(lambda c: c.limit_length(low=int(v)), "minLength"),
    "minProperties": lambda x, v: x.limit(lambda c: c.limit_properties(low=int(v)), "minProperties"),
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "propertyNames": _property_names,
    "required": lambda x, v: x.limit(lambda c: c.require(*v), "required"),
    "type": _type,
    "uniqueItems": _unique_items,
    **_first_of("properties", "patternProperties", "additionalProperties")(_properties),
    **_first_of("items", "prefixItems", "additionalItems")(_items),
}

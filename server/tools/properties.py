"""Parameters one by one, for formats that do not write arguments as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from server.tools.forms import Format
from server.tools.json_text import dump, strict_loads

_DEFINITIONS = ("$defs", "definitions")
_DESCRIPTIONS = frozenset({"title", "description", "$schema", "examples", "default", "deprecated", "$comment"})
_SPLITTABLE = frozenset({"type", "properties", "required", "additionalProperties", *_DEFINITIONS, *_DESCRIPTIONS})


_TYPES = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_PYTHON_LITERALS = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True)
class Property:
    name: str
    schema: Any
    is_required: bool
    surroundings: dict[str, Any]
    """What the schema may refer to, and the dialect it is written in."""

    @property
    def is_plain_text(self) -> bool:
        """Whether the value is a string that nothing but a list of choices restricts."""
        schema = self.schema
        if not isinstance(schema, dict) or schema.get("type") != "string":
            return False
        return schema.keys() - _DESCRIPTIONS - set(_DEFINITIONS) <= {"type", "enum"} and all(
            isinstance(choice, str) for choice in self.choices
        )

    @property
    def types(self) -> frozenset[str]:
        """JSON types that a value may have."""
        definitions = {
            f"#/{place}/{name}": schema
            for place in _DEFINITIONS
            if isinstance(self.surroundings.get(place), dict)
            for name, schema in self.surroundings[place].items()
        }
        return _types(self.schema, definitions, frozenset())

    def may_be(self, value: Any) -> bool:
        """Whether a JSON value has a declared type."""
        return bool(self.types & _types_of(value))

    def as_json(self, text: str) -> str:
        """A value that a model wrote as it liked, as JSON text of a declared type where it can be read as one."""
        stripped = text.strip()
        stripped = _PYTHON_LITERALS.get(stripped, stripped)
        try:
            is_declared = self.may_be(strict_loads(stripped))
        except ValueError:
            return dump(text)
        return stripped if is_declared or "string" not in self.types else dump(text)

    @property
    def choices(self) -> list[Any]:
        choices = self.schema.get("enum")
        return choices if isinstance(choices, list) else []

    def json_format(self, origin: str) -> Format:
        """The value as JSON; ``origin`` is where the request has the parameters."""
        schema = {**self.surroundings, "properties": {self.name: self.schema}}
        return {"type": "json_schema", "json_schema": schema, "at": ["properties", self.name], "origin": origin}


def split_parameters(parameters: dict[str, Any]) -> list[Property] | None:
    """The declared parameters, those that are required first.

    ``None`` where the schema says something about its parameters together, or refers to anything but its definitions:
    only whole objects can be held to that.
    """
    properties = parameters.get("properties") or {}
    required = parameters.get("required") or []
    if not (isinstance(properties, dict) and isinstance(required, list)):
        return None  # what is wrong with it, the grammar layer says
    if parameters.keys() - _SPLITTABLE or not all(isinstance(name, str) and name in properties for name in required):
        return None
    if not all(_stays_in_definitions(schema) for schema in parameters.values()):
        return None
    found = list(declared_properties(parameters))
    return [one for one in found if one.is_required] + [one for one in found if not one.is_required]


def declared_properties(parameters: dict[str, Any]) -> Iterator[Property]:
    surroundings = {key: parameters[key] for key in (*_DEFINITIONS, "$schema") if key in parameters}
    required, properties = parameters.get("required"), parameters.get("properties")
    required = required if isinstance(required, list) else []
    for name, schema in properties.items() if isinstance(properties, dict) else ():
        yield Property(name, schema, name in required, surroundings)


def _types(schema: Any, definitions: dict[str, Any], seen: frozenset[str]) -> frozenset[str]:
    """JSON types that a schema leaves; more than it does where it says so in other ways than the usual ones."""
    if schema is False:
        return frozenset()
    if not isinstance(schema, dict):
        return _TYPES
    left = _TYPES
    if isinstance(declared := schema.get("type"), (str, list)):
        names = {declared} if isinstance(declared, str) else {name for name in declared if isinstance(name, str)}
        left &= names | ({"integer"} if "number" in names else set())
    if "const" in schema:
        left &= _types_of(schema["const"])
    if isinstance(choices := schema.get("enum"), list):
        left &= frozenset().union(*map(_types_of, choices))
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference in definitions and reference not in seen:
        left &= _types(definitions[reference], definitions, seen | {reference})
    for keyword in ("anyOf", "oneOf"):
        if isinstance(members := schema.get(keyword), list):
            left &= frozenset().union(*(_types(member, definitions, seen) for member in members))
    for member in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
        left &= _types(member, definitions, seen)
    return left


def _types_of(value: Any) -> frozenset[str]:
    """The names that schemas have for the type of a value."""
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, (int, float)):
        is_whole = isinstance(value, int) or value.is_integer()
        return frozenset({"number", "integer"} if is_whole else {"number"})
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return frozenset({names[type(value)]})


def _stays_in_definitions(value: Any) -> bool:
    """Whether every reference inside leads to the definitions at the top."""
    if isinstance(value, list):
        return all(_stays_in_definitions(one) for one in value)
    if not isinstance(value, dict):
        return True
    for name, one in value.items():
        if name in ("$ref", "$dynamicRef", "$recursiveRef", "$id", "id") and isinstance(one, str):
            if not one.startswith(tuple(f"#/{place}/" for place in _DEFINITIONS)):
                return False
        elif not _stays_in_definitions(one):
            return False
    return True

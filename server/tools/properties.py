"""Parameters one by one, for formats that do not write arguments as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from server.tools.forms import Format

_DEFINITIONS = ("$defs", "definitions")
_DESCRIPTIONS = frozenset({"title", "description", "$schema", "examples", "default", "deprecated", "$comment"})
_SPLITTABLE = frozenset({"type", "properties", "required", "additionalProperties", *_DEFINITIONS, *_DESCRIPTIONS})


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
    def choices(self) -> list[Any]:
        return list(self.schema.get("enum", ()))

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
    if parameters.keys() - _SPLITTABLE or not all(name in properties for name in required):
        return None
    if not all(_stays_in_definitions(schema) for schema in parameters.values()):
        return None
    found = list(declared_properties(parameters))
    return [one for one in found if one.is_required] + [one for one in found if not one.is_required]


def declared_properties(parameters: dict[str, Any]) -> Iterator[Property]:
    surroundings = {key: parameters[key] for key in (*_DEFINITIONS, "$schema") if key in parameters}
    required = parameters.get("required") or ()
    for name, schema in (parameters.get("properties") or {}).items():
        yield Property(name, schema, name in required, surroundings)


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

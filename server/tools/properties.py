"""Parameters one by one, for formats that do not write arguments as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from server.tools.parser import UnsupportedToolError

_DEFINITIONS = ("$defs", "definitions")
_DESCRIPTIONS = frozenset({"title", "description", "$schema", "$id", "examples", "default", "deprecated", "$comment"})
_SPLITTABLE = frozenset({"type", "properties", "required", "additionalProperties", *_DEFINITIONS, *_DESCRIPTIONS})


@dataclass(frozen=True)
class Property:
    name: str
    schema: Any
    """Complete in itself: the definitions it may refer to are in it."""
    is_required: bool

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


def split_parameters(tool: str, parameters: dict[str, Any], *, in_format: str) -> list[Property]:
    """The declared parameters, those that are required first.

    Raises
    ------
    UnsupportedToolError
        The schema says something about its parameters together, which only whole JSON objects can be held to.
    """
    odd = sorted(parameters.keys() - _SPLITTABLE)
    if odd:
        raise UnsupportedToolError(
            f"the parameters of tool {tool!r} use {odd[0]!r} beside 'properties', which calls in the format "
            f"{in_format!r} cannot be held to; move it into a property"
        )
    properties = parameters.get("properties") or {}
    required = parameters.get("required") or []
    undeclared = [name for name in required if name not in properties]
    if undeclared:
        raise UnsupportedToolError(
            f"the parameters of tool {tool!r} require {undeclared[0]!r}, which 'properties' does not declare"
        )
    found = list(declared_properties(parameters))
    return [one for one in found if one.is_required] + [one for one in found if not one.is_required]


def declared_properties(parameters: dict[str, Any]) -> Iterator[Property]:
    definitions = {key: parameters[key] for key in _DEFINITIONS if key in parameters}
    required = parameters.get("required") or ()
    for name, schema in (parameters.get("properties") or {}).items():
        complete = {**definitions, **schema} if isinstance(schema, dict) else schema
        yield Property(name, complete, name in required)

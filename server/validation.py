"""From a parsed body to a typed request: one error that names the field, in words a caller can act on."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, ValidationError, model_validator
from pydantic_core import ErrorDetails

from server.errors import BadRequestError
from server.ignored_fields import (
    IGNORED_FIELDS,
    NEUTRAL_VALUES,
    REFUSED_FIELDS,
    REFUSED_NESTED_FIELDS,
    RENAMED_FIELDS,
)

_INDEX = re.compile(r"\[[0-9]+\]")

_Model = TypeVar("_Model", bound="RequestModel")
_Item = TypeVar("_Item")


class _FailFast(FailFast):
    def __hash__(self) -> int:  # members of a union are hashed, and pydantic's class forgot that
        return hash(self.fail_fast)


List = Annotated[list[_Item], _FailFast()]
"""A list that is given up at its first bad item: a million bad ones would be a million errors."""


class RequestModel(BaseModel):
    """Base of all request bodies: no coercion between JSON types, no unknown fields, no infinities.

    A known field that is ``null`` counts as left out, as it does at OpenAI.
    """

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,  # /openapi.json and /docs show them
    )

    fields_elsewhere: ClassVar[Mapping[str, str]] = {}
    """Fields that are often sent to the wrong endpoint, and what to do instead."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, body: Any) -> Any:
        if not isinstance(body, dict) or None not in body.values():
            return body
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {name: value for name, value in body.items() if value is not None or name not in known}


def validate_request(model: type[_Model], body: Mapping[str, Any]) -> _Model:
    """Check ``body`` against ``model``.

    Published ignored fields are dropped.

    Raises
    ------
    BadRequestError
        Names the first offending field.
    """
    known = {field.alias or name for name, field in model.model_fields.items()}
    fields: dict[str, Any] = {}
    for name, value in body.items():
        if name in known:
            fields[name] = value
        elif name in REFUSED_FIELDS:
            if value is not None and value != NEUTRAL_VALUES.get(name):
                raise BadRequestError(f"'{name}' is refused: {REFUSED_FIELDS[name]}", param=name, code="unsupported")
        elif name not in IGNORED_FIELDS:
            raise _unknown_field(model, known, name)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _from_pydantic(error, fields) from error


def field_path(location: tuple[int | str, ...], body: Any) -> str:
    """``messages[0].content`` for a pydantic location, without the names of unions and tags pydantic adds to it."""
    path = ""
    node = body
    for position, step in enumerate(location):
        child = _child(node, step)
        if child is not _MISSING:
            path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
            node = child
        elif isinstance(step, str) and isinstance(node, dict) and position == len(location) - 1:
            path += f".{step}" if path else step
    return path


def closest(name: str, known: list[str]) -> str:
    """`` Did you mean 'x'?`` or nothing."""
    matches = difflib.get_close_matches(name[:64], known, n=1, cutoff=0.75)
    return f" Did you mean '{matches[0]}'?" if matches else ""


def _unknown_field(model: type[RequestModel], known: Collection[str], name: str) -> BadRequestError:
    shown = name[:100]
    if name in model.fields_elsewhere:
        hint = f" {model.fields_elsewhere[name]}"
    elif RENAMED_FIELDS.get(name) in known:
        hint = f" Here it is '{RENAMED_FIELDS[name]}'."
    else:
        hint = closest(shown, [*known, *IGNORED_FIELDS])
    return BadRequestError(f"Unknown field '{shown}'.{hint}", param=shown, code="unknown_field")


def _from_pydantic(error: ValidationError, body: dict[str, Any]) -> BadRequestError:
    # A union reports one error for each of its members; the ones that got furthest into the body are the useful ones.
    errors = error.errors(include_url=False)
    furthest = max(_depth(item, body) for item in errors)
    # Where no union is concerned, what a ``type`` may be says more than that the fields beside it are unknown.
    wrong_types = [
        item for item in errors if item["type"] == "literal_error" and _depth(item, body) == len(item["loc"])
    ]
    alternatives = wrong_types or [item for item in errors if _depth(item, body) == furthest]
    details = alternatives[0]
    path = field_path(details["loc"], body)
    if details["type"] == "extra_forbidden":
        hint = REFUSED_NESTED_FIELDS.get(_INDEX.sub("[]", path))
        if hint is not None:
            return BadRequestError(f"'{path}' is refused: {hint}", param=path, code="unsupported")
        return BadRequestError(f"Unknown field '{path}'.", param=path, code="unknown_field")
    if details["type"] == "missing":
        return BadRequestError(f"The field '{path}' is required.", param=path, code="missing_field")
    reasons = dict.fromkeys(_reason(item) for item in alternatives if field_path(item["loc"], body) == path)
    return BadRequestError(
        f"Invalid value for '{path}': {', or '.join(reasons)}.", param=path or None, code="invalid_value"
    )


def _reason(details: ErrorDetails) -> str:
    if details["type"] == "model_type":
        return "Input should be an object"
    return details["msg"].replace("valid dictionary", "valid object")


def _depth(details: ErrorDetails, body: Any) -> int:
    depth = 0
    node = body
    for step in details["loc"]:
        child = _child(node, step)
        if child is not _MISSING:
            depth += 1
            node = child
    # A field that is missing or unknown lies one level below the object it was looked for in.
    return depth + (details["type"] in ("missing", "extra_forbidden"))


_MISSING = object()


def _child(node: Any, step: int | str) -> Any:
    if isinstance(step, int):
        return node[step] if isinstance(node, list) and step < len(node) else _MISSING
    return node.get(step, _MISSING) if isinstance(node, dict) else _MISSING

"""The form a request asks for, from any of its spellings, as one :class:`GrammarSpec`."""

from __future__ import annotations

import json
import re
from typing import Any

from constrained.spec import GrammarKind, GrammarSpec
from server.errors import BadRequestError
from server.request.fields import JsonSchemaFormat, ResponseFormat, SamplingFields, StructuredOutputs
from server.tools.json_text import strict_loads

_ANY_OBJECT = '{"type":"object"}'


def constraint_field(fields: SamplingFields) -> str:
    """The field that :func:`grammar_spec` takes the constraint from."""
    if fields.structured_outputs is not None:
        inner = (name for name, value in fields.structured_outputs if value not in (None, False))
        return "structured_outputs." + next(inner).rstrip("_")
    names = ("json_schema", "regex", "ebnf", "choice")
    return next((name for name in names if getattr(fields, name) is not None), "response_format")


def grammar_spec(fields: SamplingFields, *, max_bytes: int) -> GrammarSpec | None:
    """The request's constraint; ``None`` when it asks for free text.

    Raises
    ------
    BadRequestError
        More than one constraint, a constraint of the wrong type, or one longer than ``max_bytes``.
    """
    found: list[tuple[str, GrammarSpec]] = []
    if fields.response_format is not None:
        found += _from_response_format(fields.response_format)
    if fields.structured_outputs is not None:
        found += _from_structured_outputs(fields.structured_outputs)
    if fields.json_schema is not None:
        found.append(("json_schema", _schema(fields.json_schema, "json_schema")))
    if fields.regex is not None:
        found.append(("regex", _text("regex", fields.regex, "regex")))
    if fields.ebnf is not None:
        found.append(("ebnf", _text("ebnf", fields.ebnf, "ebnf")))
    if fields.choice is not None:
        found.append(("choice", _choice(fields.choice, "choice")))
    if len(found) > 1:
        names = " and ".join(f"'{name}'" for name, _ in found)
        raise BadRequestError(f"Give one constraint, not {names}.", param=found[1][0], code="conflicting_constraints")
    if not found:
        return None
    name, spec = found[0]
    if len(spec.value.encode()) > max_bytes:
        raise BadRequestError(f"'{name}' is longer than the limit of {max_bytes} bytes.", param=name)
    return GrammarSpec(
        kind=spec.kind, value=spec.value, strict=spec.strict, lenient=fields.lenient, backend=fields.grammar_backend
    )


def choice_regex(choices: list[str]) -> str:
    """A pattern that is matched by the choices and nothing else."""
    # re.escape also escapes what regex dialects other than Python's do not let one escape, such as a blank.
    escaped = (re.sub(r"[\\^$.|?*+()\[\]{}]", lambda match: "\\" + match.group(), choice) for choice in choices)
    return "(" + "|".join(escaped) + ")"


def _from_response_format(form: ResponseFormat) -> list[tuple[str, GrammarSpec]]:
    name = "response_format"
    if form.type != "json_schema" and form.json_schema is not None:
        raise BadRequestError(
            f"'{name}.json_schema' belongs to the type 'json_schema', not '{form.type}'.", param=f"{name}.json_schema"
        )
    if form.type != "json_object" and form.schema_ is not None:
        raise BadRequestError(
            f"'{name}.schema' belongs to the type 'json_object'; with 'json_schema' it is '{name}.json_schema.schema'.",
            param=f"{name}.schema",
        )
    if form.type != "structural_tag":
        for field in ("structures", "triggers", "format"):
            if getattr(form, field) is not None:
                raise BadRequestError(
                    f"'{name}.{field}' belongs to the type 'structural_tag', not '{form.type}'.",
                    param=f"{name}.{field}",
                )
    if form.type == "text":
        return []
    if form.type == "json_object":
        schema = form.schema_
        spec = (
            GrammarSpec(kind="json_schema", value=_ANY_OBJECT) if schema is None else _schema(schema, f"{name}.schema")
        )
        return [(name, spec)]
    if form.type == "json_schema":
        return [(name, _from_json_schema_format(form.json_schema, f"{name}.json_schema"))]
    return [(name, _structural_tag(form.model_dump(exclude_none=True, include=_TAG_FIELDS), name))]


_TAG_FIELDS = {"type", "structures", "triggers", "format"}


def _from_json_schema_format(form: JsonSchemaFormat | None, name: str) -> GrammarSpec:
    if form is None:
        raise BadRequestError(f"The field '{name}' is required.", param=name, code="missing_field")
    if form.name is not None and not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", form.name):
        raise BadRequestError(
            f"'{name}.name' must have 1 to 64 of the characters a-z, A-Z, 0-9, _ and -.", param=f"{name}.name"
        )
    if form.schema_ is None:
        raise BadRequestError(f"The field '{name}.schema' is required.", param=f"{name}.schema", code="missing_field")
    return _schema(form.schema_, f"{name}.schema", strict=bool(form.strict))


def _from_structured_outputs(outputs: StructuredOutputs) -> list[tuple[str, GrammarSpec]]:
    name = "structured_outputs"
    found: list[tuple[str, GrammarSpec]] = []
    if outputs.json_ is not None:
        found.append((f"{name}.json", _schema(_parsed(outputs.json_, f"{name}.json"), f"{name}.json")))
    if outputs.regex is not None:
        found.append((f"{name}.regex", _text("regex", outputs.regex, f"{name}.regex")))
    if outputs.choice is not None:
        found.append((f"{name}.choice", _choice(outputs.choice, f"{name}.choice")))
    if outputs.grammar is not None:
        found.append((f"{name}.grammar", _text("ebnf", outputs.grammar, f"{name}.grammar")))
    if outputs.json_object:
        found.append((f"{name}.json_object", GrammarSpec(kind="json_schema", value=_ANY_OBJECT)))
    if outputs.structural_tag is not None:
        tag = _parsed(outputs.structural_tag, f"{name}.structural_tag")
        found.append((f"{name}.structural_tag", _structural_tag(tag, f"{name}.structural_tag")))
    if not found:
        raise BadRequestError(f"'{name}' names no constraint.", param=name)
    return found


def _parsed(value: Any, name: str) -> Any:
    """vLLM takes schemas and tags as objects or as their JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return strict_loads(value)
    except json.JSONDecodeError as error:
        where = f"at line {error.lineno}, column {error.colno}"
        reason = f"{error.msg.removesuffix(' at')} {where}"
        raise BadRequestError(f"'{name}' is not valid JSON: {reason}.", param=name) from error
    except ValueError as error:
        raise BadRequestError(f"'{name}' is not valid JSON: {str(error)[:200]}.", param=name) from error


def _schema(schema: Any, name: str, *, strict: bool = False) -> GrammarSpec:
    if not isinstance(schema, (dict, bool)):
        raise BadRequestError(
            f"'{name}' must be a JSON Schema, an object; it is {_json_type(schema)}.", param=name, code="invalid_schema"
        )
    return GrammarSpec(kind="json_schema", value=_dump(schema), strict=strict)


def _structural_tag(tag: Any, name: str) -> GrammarSpec:
    if not isinstance(tag, dict):
        raise BadRequestError(f"'{name}' must be an object; it is {_json_type(tag)}.", param=name)
    is_older = isinstance(tag.get("structures"), list) and isinstance(tag.get("triggers"), list)
    is_newer = isinstance(tag.get("format"), dict)
    if is_older == is_newer:
        raise BadRequestError(
            f"A structural tag has either 'format' (an object) or 'structures' and 'triggers' (lists); '{name}' has "
            f"{'both' if is_older else 'neither'}.",
            param=name,
        )
    return GrammarSpec(kind="structural_tag", value=_dump({"type": "structural_tag", **tag}))


def _text(kind: GrammarKind, text: str, name: str) -> GrammarSpec:
    if not text:
        raise BadRequestError(f"'{name}' is empty.", param=name)
    return GrammarSpec(kind=kind, value=text)


def _choice(choices: list[str], name: str) -> GrammarSpec:
    if not choices:
        raise BadRequestError(f"'{name}' is empty: there is nothing to choose from.", param=name)
    for index, choice in enumerate(choices):
        if not choice:
            raise BadRequestError(f"'{name}[{index}]' is empty.", param=f"{name}[{index}]")
    return GrammarSpec(kind="regex", value=choice_regex(list(dict.fromkeys(choices))))


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), "a number")

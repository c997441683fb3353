"""What outlines-core enforces of JSON Schema: a schema becomes one regular expression, so anything recursive is out.

Established by experiment with 0.2.14. It closes every object, which is stricter than the schema and therefore safe, and
takes most keywords outside this list without a word.
"""

from __future__ import annotations

import json
from typing import Any

from constrained.json_schema.errors import UnenforceableError
from constrained.json_schema.prepared import PreparedGrammar, PrepareOptions
from constrained.json_schema.reading.document import Document, SchemaNode, escape_pointer
from constrained.preparation.native import ANNOTATIONS
from constrained.spec import GrammarSpec

_BY_TYPE: dict[str, frozenset[str]] = {
    "array": frozenset({"items", "maxItems", "minItems"}),
    "boolean": frozenset(),
    "integer": frozenset(),
    "null": frozenset(),
    "number": frozenset(),
    "object": frozenset({"additionalProperties", "properties", "required"}),
    "string": frozenset({"maxLength", "minLength"}),
}


def prepare_for_outlines(spec: GrammarSpec, options: PrepareOptions) -> PreparedGrammar:
    """Pass a schema on, if every keyword in it is enforced."""
    document = Document(spec.value, options.limits, strict=spec.strict)
    stack = [document.root]
    while stack:
        node = stack.pop()
        stack += _check(document, node)
    return PreparedGrammar(
        "outlines", "json_schema", json.dumps(document.root.value, ensure_ascii=False, default=float)
    )


def _check(document: Document, node: SchemaNode) -> list[SchemaNode]:
    value = node.value
    if isinstance(value, bool):
        raise UnenforceableError("outlines takes no boolean schemas", node.pointer)
    asserted = {keyword: one for keyword, one in value.items() if keyword not in ANNOTATIONS}
    if "enum" in asserted or "const" in asserted:
        return _listed(node, asserted)
    if set(asserted) == {"anyOf"}:
        return [document.child(node, "anyOf", index) for index in range(len(value["anyOf"]))]
    kind = asserted.pop("type", None)
    if not isinstance(kind, str):
        raise UnenforceableError("outlines needs one 'type' in every schema", node.pointer)
    for keyword in asserted:
        if keyword not in _BY_TYPE[kind]:
            place = f"{node.pointer}/{escape_pointer(keyword)}"
            raise UnenforceableError(f"outlines does not enforce {keyword!r} here", place, keyword=keyword)
    if kind == "object":
        return _members(document, node, asserted)
    if kind == "array":
        if "items" not in asserted:
            raise UnenforceableError("outlines needs 'items' in every array", node.pointer)
        return [document.child(node, "items")]
    return []


def _listed(node: SchemaNode, asserted: dict[str, Any]) -> list[SchemaNode]:
    others = [keyword for keyword in asserted if keyword not in ("enum", "const")]
    if others or len(asserted) > 1:
        place = f"{node.pointer}/{escape_pointer((others or ['const'])[0])}"
        raise UnenforceableError("outlines enforces nothing beside enum or const", place)
    values = asserted.get("enum", [asserted.get("const")])
    if not all(isinstance(one, str | bool | int) or one is None for one in values):
        raise UnenforceableError("outlines takes only texts, whole numbers, booleans and null here", node.pointer)
    return []


def _members(document: Document, node: SchemaNode, asserted: dict[str, Any]) -> list[SchemaNode]:
    properties = asserted.get("properties", {})
    if not properties:
        raise UnenforceableError("outlines needs 'properties' in every object", node.pointer)
    if asserted.get("additionalProperties") not in (None, False, True):
        raise UnenforceableError(
            "outlines does not enforce this", f"{node.pointer}/additionalProperties", keyword="additionalProperties"
        )
    for name in asserted.get("required", []):
        if name not in properties:
            raise UnenforceableError(
                "outlines forgets required names that are not declared", f"{node.pointer}/required"
            )
    for name in properties:
        if json.dumps(name, ensure_ascii=False) != f'"{name}"':
            place = f"{node.pointer}/properties/{escape_pointer(name)}"
            raise UnenforceableError("outlines writes names as they are, this one needs escapes", place)
    return [document.child(node, "properties", name) for name in properties]

"""What xgrammar's own schema converter enforces, where a schema has to be handed to it as it is.

Established by experiment with 0.2.9: each entry is a keyword whose violation it refuses, alone and beside every
other entry. It takes ``pattern``, ``format``, ``multipleOf``, ``not``, ``contains``, ``uniqueItems``, ``if`` and
others without enforcing them, or not beside a second constraint, so those are refused here.
"""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

from constrained.json_schema.errors import SchemaError, UnenforceableError
from constrained.json_schema.prepared import Limits
from constrained.json_schema.reading.document import Document, escape_pointer
from constrained.json_schema.solving.shapes import Literal
from constrained.json_schema.solving.solver import Solver

ANNOTATIONS = frozenset(
    {
        "$comment",
        "$id",
        "$schema",
        "default",
        "deprecated",
        "description",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    }
)
ENFORCED = frozenset(
    {
        "$defs",
        "$ref",
        "additionalProperties",
        "anyOf",
        "const",
        "definitions",
        "enum",
        "items",
        "maxItems",
        "maxLength",
        "minItems",
        "minLength",
        "prefixItems",
        "properties",
        "required",
        "type",
    }
)
_INTEGER_BOUNDS = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"})
_SOURCE_POSITION = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: (?:.*\) is false: )?")
_TEXT_POSITION = re.compile(r"error at line \d+, column \d+")
_ALONE = frozenset({"$ref", "anyOf", "allOf", "const", "enum", "oneOf"})
"""Keywords beside which xgrammar forgets every other one."""


def check_native_schema(schema: Any, limits: Limits, pointer: str) -> None:
    """Raise for the first keyword, or combination, that xgrammar would take without enforcing it."""
    try:
        document = Document(json.dumps(schema), limits)
    except SchemaError as error:
        raise SchemaError(error.message, pointer + error.pointer) from None
    solver = Solver(document)
    stack: list[tuple[Any, str]] = [(document.root.value, "")]
    while stack:
        value, place = stack.pop()
        if isinstance(value, dict):
            _check_keywords(document, solver, value, place, pointer)
            stack += _subschemas(value, place)


def xgrammar_reason(error: Exception) -> str:
    """xgrammar's message without positions in its own source, and without the excerpt under a position in a text."""
    message = _SOURCE_POSITION.sub("", str(error).strip()) or type(error).__name__
    if _TEXT_POSITION.search(message):
        message = message.partition("\n")[0]
    return " ".join(message.split())[:500]


def _check_keywords(document: Document, solver: Solver, value: dict[str, Any], place: str, pointer: str) -> None:
    asserted = [keyword for keyword in value if keyword not in ANNOTATIONS and keyword not in ("$defs", "definitions")]
    for keyword in asserted:
        here = f"{pointer}{place}/{escape_pointer(keyword)}"
        if not _is_enforced(document, solver, value, keyword):
            raise UnenforceableError(f"xgrammar does not enforce {keyword!r} here", here, keyword=keyword)
        others = [other for other in asserted if other not in (keyword, "type")]
        if keyword in _ALONE and others:
            raise UnenforceableError(
                f"xgrammar does not enforce {others[0]!r} beside {keyword!r}", here, keyword=keyword
            )


def _is_enforced(document: Document, solver: Solver, value: dict[str, Any], keyword: str) -> bool:
    if keyword in _INTEGER_BOUNDS:
        return value.get("type") == "integer"
    if keyword == "allOf":
        return len(value[keyword]) == 1
    if keyword == "oneOf":
        node = document.synthetic({"oneOf": value["oneOf"]}, "", document.root)
        branches = [Literal(document.child(node, "oneOf", i), True) for i in range(len(value["oneOf"]))]
        return all(solver.are_disjoint(one, other) for one, other in combinations(branches, 2))
    if keyword == "patternProperties":
        return not value.get("properties") and len(value[keyword]) == 1
    return keyword in ENFORCED or keyword not in _KNOWN


def _subschemas(value: dict[str, Any], place: str) -> list[tuple[Any, str]]:
    found: list[tuple[Any, str]] = []
    for keyword, content in value.items():
        here = f"{place}/{escape_pointer(keyword)}"
        if keyword in ("properties", "$defs", "definitions", "patternProperties"):
            found += [(one, f"{here}/{escape_pointer(name)}") for name, one in content.items()]
        elif keyword in ("items", "additionalProperties") and isinstance(content, dict):
            found.append((content, here))
        elif keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
            found += [(one, f"{here}/{index}") for index, one in enumerate(content)]
    return found


_KNOWN = ENFORCED | frozenset(
    {
        "$anchor",
        "$dynamicAnchor",
        "$dynamicRef",
        "$recursiveRef",
        "additionalItems",
        "contains",
        "contentEncoding",
        "contentMediaType",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "format",
        "if",
        "maxContains",
        "maxProperties",
        "minContains",
        "minProperties",
        "multipleOf",
        "not",
        "pattern",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    }
)

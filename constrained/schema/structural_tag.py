"""The ``structural_tag`` constraint: free text with constrained parts between tags, always compiled by xgrammar.

The schemas inside are written as grammars of this package, so that what holds for ``json_schema`` holds for them; the
other formats are passed on. Two members are our own: ``origin`` says what stands before the JSON pointers in messages
about a schema, pattern or grammar, and ``at`` which part of a ``json_schema`` is meant, as the path to it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import xgrammar

from constrained.schema.document import Document, SchemaNode, escape_pointer, parse_json
from constrained.schema.ebnf import check_ebnf
from constrained.schema.ebnf_writer import EbnfWriter
from constrained.schema.errors import SchemaError, UnenforceableError
from constrained.schema.native import check_native_schema, xgrammar_reason
from constrained.schema.prepared import Notice, PreparedGrammar, PrepareOptions
from constrained.schema.regex import ebnf_of, read_regex
from constrained.schema.shapes import Literal
from constrained.schema.solver import Solver
from constrained.spec import GrammarSpec

_KNOWN = frozenset(
    {
        "any_text",
        "any_tokens",
        "const_string",
        "deepseek_xml_parameter",
        "dispatch",
        "exclude_token",
        "glm_xml_parameter",
        "grammar",
        "json_schema",
        "minimax_xml_parameter",
        "optional",
        "or",
        "plus",
        "qwen_xml_parameter",
        "regex",
        "repeat",
        "sequence",
        "star",
        "tag",
        "tags_with_separator",
        "token",
        "token_dispatch",
        "token_triggered_tags",
        "triggered_tags",
    }
)


def prepare_structural_tag(spec: GrammarSpec, backend: str, options: PrepareOptions) -> PreparedGrammar:
    """See :func:`constrained.schema.prepare.prepare`."""
    document = parse_json(spec.value, options.limits, "the structural tag", exact=False)
    if not isinstance(document, dict):
        raise SchemaError("a structural tag is an object")
    walker = _Walker(spec, options)
    if "format" in document:
        tag_format = walker.format(document["format"], "/format")
    else:
        tag_format = walker.legacy(document)
    text = json.dumps({"type": "structural_tag", "format": tag_format}, ensure_ascii=False)
    return PreparedGrammar("xgrammar", "structural_tag", text, tuple(walker.notices))


class _Walker:
    def __init__(self, spec: GrammarSpec, options: PrepareOptions) -> None:
        self.spec = spec
        self.options = options
        self.notices: list[Notice] = []

    def legacy(self, document: dict[str, Any]) -> dict[str, Any]:
        """The older ``structures`` and ``triggers`` as triggered tags."""
        structures, triggers = document.get("structures"), document.get("triggers")
        if not isinstance(structures, list) or not structures:
            raise SchemaError(
                "'structures' must be a list of at least one structure, with texts 'begin' and 'end', and a 'schema'",
                "/structures",
            )
        if not isinstance(triggers, list) or not triggers or not all(isinstance(t, str) and t for t in triggers):
            raise SchemaError("'triggers' must be a list of at least one text, none of them empty", "/triggers")
        tags = []
        for index, one in enumerate(structures):
            place = f"/structures/{index}"
            if (
                not isinstance(one, dict)
                or not isinstance(one.get("begin"), str)
                or not isinstance(one.get("end"), str)
            ):
                raise SchemaError("a structure has texts 'begin' and 'end', and a 'schema'", place)
            if not any(one["begin"].startswith(trigger) for trigger in triggers):
                raise SchemaError("no trigger begins this structure's 'begin'", f"{place}/begin")
            content = self.schema(one.get("schema", {}), f"{place}/schema")
            tags.append({"type": "tag", "begin": one["begin"], "content": content, "end": one["end"]})
        return {"type": "triggered_tags", "triggers": triggers, "tags": tags}

    def format(self, value: Any, pointer: str) -> Any:
        if not isinstance(value, dict):
            raise SchemaError("a format is an object with a 'type'", pointer)
        kind = value.get("type")
        if kind not in _KNOWN and not (kind is None and "begin" in value):
            raise SchemaError(f"unknown format type {kind!r}", f"{pointer}/type")
        if kind == "json_schema":
            return self._json_schema(value, pointer)
        if kind in ("regex", "grammar"):
            origin = value.get("origin")
            value = {name: one for name, one in value.items() if name != "origin"}
            if kind == "regex":
                return self._regex(value, origin if isinstance(origin, str) else f"{pointer}/pattern")
            return self._grammar(value, origin if isinstance(origin, str) else f"{pointer}/grammar")
        if isinstance(kind, str) and kind.endswith("_xml_parameter"):
            check_native_schema(value.get("json_schema"), self.options.limits, f"{pointer}/json_schema")
        return {name: self._member(name, one, f"{pointer}/{escape_pointer(name)}") for name, one in value.items()}

    def _member(self, name: str, value: Any, pointer: str) -> Any:
        if name in ("content", "element") and isinstance(value, dict):
            return self.format(value, pointer)
        if name in ("content", "element", "elements", "tags") and isinstance(value, list):
            return [self.format(one, f"{pointer}/{index}") for index, one in enumerate(value)]
        if name == "rules" and isinstance(value, list):
            return [
                [one[0], self.format(one[1], f"{pointer}/{index}/1")]
                if isinstance(one, list) and len(one) == 2
                else one
                for index, one in enumerate(value)
            ]
        return value

    def _json_schema(self, value: dict[str, Any], pointer: str) -> dict[str, Any]:
        if "json_schema" not in value:
            raise SchemaError("a json_schema format needs 'json_schema'", pointer)
        schema = value["json_schema"]
        if value.get("style", "json") != "json" or value.get("any_order") is True:
            # Neither XML nor free key order is among what the grammars of this package describe.
            check_native_schema(schema, self.options.limits, f"{pointer}/json_schema")
            return value
        origin, path = value.get("origin"), value.get("at", [])
        if not isinstance(path, list) or not all(isinstance(step, str) for step in path):
            raise SchemaError("'at' is the path to a part of the schema, a list of names", f"{pointer}/at")
        return self.schema(schema, origin if isinstance(origin, str) else f"{pointer}/json_schema", path)

    def schema(self, schema: Any, pointer: str, path: Sequence[str] = ()) -> dict[str, Any]:
        """A grammar of the values of the schema, or of the part of it that ``path`` leads to."""
        try:
            document = Document(json.dumps(schema), self.options.limits, strict=self.spec.strict)
            solver = Solver(document, lenient=self.spec.lenient)
            text = EbnfWriter(solver, self.options.whitespace).write(frozenset({Literal(_part(document, path), True)}))
        except UnenforceableError as error:
            raise UnenforceableError(error.message, pointer + error.pointer, keyword=error.keyword) from None
        except SchemaError as error:
            raise SchemaError(error.message, pointer + error.pointer) from None
        self.notices += [Notice(pointer + one.pointer, one.message) for one in solver.notices]
        return {"type": "grammar", "grammar": text}

    def _regex(self, value: dict[str, Any], pointer: str) -> dict[str, Any]:
        """A grammar of the texts that the pattern matches, in the dialect of every other pattern."""
        pattern = value.get("pattern")
        if not isinstance(pattern, str):
            raise SchemaError("a regex format needs a 'pattern'", pointer)
        try:
            language = read_regex(pattern, self.options.limits)
            return {"type": "grammar", "grammar": ebnf_of(language, self.options.limits)}
        except SchemaError as error:
            raise SchemaError(error.message, pointer) from None

    def _grammar(self, value: dict[str, Any], pointer: str) -> dict[str, Any]:
        text = value.get("grammar")
        if not isinstance(text, str):
            raise SchemaError("a grammar format needs a 'grammar'", pointer)
        is_ebnf = value.get("syntax", "ebnf") == "ebnf"
        try:
            text = check_ebnf(text) if is_ebnf else text
            # Read alone, since what xgrammar says of a whole tag names no part of it.
            (xgrammar.Grammar.from_ebnf if is_ebnf else xgrammar.Grammar.from_lark)(text)
        except SchemaError as error:
            raise SchemaError(error.message, pointer) from None
        except RuntimeError as error:
            raise SchemaError(f"invalid grammar: {xgrammar_reason(error)}", pointer) from error
        return {**value, "grammar": text}


def _part(document: Document, path: Sequence[str]) -> SchemaNode:
    try:
        return document.child(document.root, *path) if path else document.root
    except (KeyError, TypeError):
        raise SchemaError(f"the schema has nothing at {list(path)}") from None

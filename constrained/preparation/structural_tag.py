"""The ``structural_tag`` constraint: free text with constrained parts between tags.

llguidance gets one grammar of the whole (:mod:`constrained.structural_tags`). xgrammar gets the tag. Schemas
and patterns inside are written as grammars of this package, so that what holds for ``json_schema`` holds for them.
The other formats are passed on. Two members are our own: ``origin`` says what stands before the JSON pointers in
messages about a schema, pattern or grammar, and ``at`` which part of a ``json_schema`` is meant, as the path to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import xgrammar

from constrained.json_schema.errors import OtherEngineError, SchemaError, UnenforceableError
from constrained.json_schema.prepared import Notice, PreparedGrammar, PrepareOptions
from constrained.json_schema.reading.document import Document, SchemaNode, escape_pointer, parse_json
from constrained.json_schema.solving.shapes import Goal, Literal
from constrained.json_schema.solving.solver import Solver
from constrained.json_schema.writing.ebnf_writer import EbnfWriter
from constrained.json_schema.writing.lark import LarkWriter
from constrained.patterns.tree import Node
from constrained.preparation.ebnf import check_ebnf
from constrained.preparation.ebnf_lark import read_rules
from constrained.preparation.native import check_native_schema, xgrammar_reason
from constrained.preparation.regex import ebnf_of, read_regex
from constrained.preparation.tag_grammar import grammar_piece, unambiguous
from constrained.spec import GrammarSpec
from constrained.structural_tags.lark import value_piece, write_tag
from constrained.structural_tags.pieces import NotExpressibleError, Piece
from constrained.structural_tags.reader import TagReader

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
    """See :func:`constrained.preparation.prepare.prepare`."""
    document = parse_json(spec.value, options.limits, "the structural tag", exact=False)
    if not isinstance(document, dict):
        raise SchemaError("a structural tag is an object")
    if "format" in document:
        value, pointer = document["format"], "/format"
    else:
        value, pointer = _triggered(document), ""
    if backend != "xgrammar":
        try:
            return _Lark(spec, options).prepare(value, pointer)
        except NotExpressibleError as error:
            if backend == "llguidance":
                raise OtherEngineError(
                    f"llguidance cannot read this structural tag exactly: {error}", pointer
                ) from None
    walker = _Walker(spec, options)
    tag_format = walker.format(value, pointer)
    text = json.dumps({"type": "structural_tag", "format": tag_format}, ensure_ascii=False)
    return PreparedGrammar("xgrammar", "structural_tag", text, tuple(walker.notices))


def _triggered(document: dict[str, Any]) -> dict[str, Any]:
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
        if not isinstance(one, dict) or not isinstance(one.get("begin"), str) or not isinstance(one.get("end"), str):
            raise SchemaError("a structure has texts 'begin' and 'end', and a 'schema'", place)
        if not any(one["begin"].startswith(trigger) for trigger in triggers):
            raise SchemaError("no trigger begins this structure's 'begin'", f"{place}/begin")
        content = {"type": "json_schema", "json_schema": one.get("schema", {}), "origin": f"{place}/schema"}
        tags.append({"type": "tag", "begin": one["begin"], "content": content, "end": one["end"]})
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


def _is_native(value: dict[str, Any]) -> bool:
    """Whether only xgrammar's own schema converter knows what a ``json_schema`` format asks for."""
    return (
        value.get("style", "json") != "json"
        or value.get("any_order") is True
        or bool(value.get("excludes"))
        or value.get("max_whitespace_cnt") is not None
    )


def _place_of(value: dict[str, Any], pointer: str) -> str:
    origin = value.get("origin")
    return origin if isinstance(origin, str) else pointer


class _Schema:
    """The schema of a ``json_schema`` format, or the part of it that ``at`` leads to."""

    def __init__(self, value: dict[str, Any], pointer: str, spec: GrammarSpec, options: PrepareOptions) -> None:
        if "json_schema" not in value:
            raise SchemaError("a json_schema format needs 'json_schema'", pointer)
        path = value.get("at", [])
        if not isinstance(path, list) or not all(isinstance(step, str) for step in path):
            raise SchemaError("'at' is the path to a part of the schema, a list of names", f"{pointer}/at")
        self.place = _place_of(value, f"{pointer}/json_schema")
        with _blaming(self.place):
            is_closing = options.undeclared_properties == "closed"
            document = Document(
                json.dumps(value["json_schema"]), options.limits, strict=spec.strict, closes_objects=is_closing
            )
            self.solver = Solver(document, lenient=spec.lenient)
            self.goal = frozenset({Literal(_part(document, path), True)})

    def written(self, write: Callable[[Solver, Goal], str]) -> str:
        """What ``write`` makes of it; its errors name the place in the request."""
        with _blaming(self.place):
            return write(self.solver, self.goal)

    @property
    def notices(self) -> list[Notice]:
        return [Notice(self.place + one.pointer, one.message) for one in self.solver.notices]


@contextmanager
def _blaming(place: str) -> Iterator[None]:
    """Put ``place`` before the pointers of errors."""
    try:
        yield
    except UnenforceableError as error:
        raise UnenforceableError(error.message, place + error.pointer, keyword=error.keyword) from None
    except SchemaError as error:
        raise SchemaError(error.message, place + error.pointer) from None


def _language(value: dict[str, Any], pointer: str, options: PrepareOptions) -> Node:
    """Texts that the pattern of a ``regex`` format matches, in the dialect of every other pattern."""
    place, pattern = _place_of(value, f"{pointer}/pattern"), value.get("pattern")
    if not isinstance(pattern, str):
        raise SchemaError("a regex format needs a 'pattern'", place)
    with _blaming(place):
        return read_regex(pattern, options.limits)


class _Lark:
    """One Lark grammar of a whole tag."""

    def __init__(self, spec: GrammarSpec, options: PrepareOptions) -> None:
        self._spec = spec
        self._options = options
        self._notices: list[Notice] = []
        self._pieces: dict[str, Piece] = {}
        self._writer = LarkWriter(Solver(Document("true", options.limits)), options.whitespace)

    def prepare(self, value: Any, pointer: str) -> PreparedGrammar:
        language = partial(_language, options=self._options)
        reader = TagReader(self._schema, language, self._grammar)
        text = write_tag(reader.format(value, pointer), self._writer)
        return PreparedGrammar("llguidance", "structural_tag", text, tuple(self._notices))

    def _schema(self, value: dict[str, Any], pointer: str) -> Piece:
        if _is_native(value):
            raise NotExpressibleError("a json_schema format has members that xgrammar alone knows")
        key = json.dumps(value)
        if key not in self._pieces:
            schema = _Schema(value, pointer, self._spec, self._options)
            symbol = schema.written(self._writer.add)
            self._notices += schema.notices
            self._pieces[key] = value_piece(symbol, schema.solver.shapes(schema.goal))
        return self._pieces[key]

    def _grammar(self, value: dict[str, Any], pointer: str) -> Piece:
        text, grammar = _checked_grammar(value, _place_of(value, f"{pointer}/grammar"))
        is_ebnf = value.get("syntax", "ebnf") == "ebnf"
        try:
            rules = read_rules(text if is_ebnf else unambiguous(str(grammar)))
        except UnenforceableError as error:
            raise NotExpressibleError(error.message) from None
        return grammar_piece(rules, self._writer)


class _Walker:
    def __init__(self, spec: GrammarSpec, options: PrepareOptions) -> None:
        self.spec = spec
        self.options = options
        self.notices: list[Notice] = []

    def format(self, value: Any, pointer: str) -> Any:
        if not isinstance(value, dict):
            raise SchemaError("a format is an object with a 'type'", pointer)
        kind = value.get("type")
        if kind not in _KNOWN and not (kind is None and "begin" in value):
            raise SchemaError(f"unknown format type {kind!r}", f"{pointer}/type")
        if kind == "json_schema":
            return self._json_schema(value, pointer)
        if kind == "regex":
            with _blaming(_place_of(value, f"{pointer}/pattern")):
                language = ebnf_of(_language({**value, "origin": ""}, pointer, self.options), self.options.limits)
            return {"type": "grammar", "grammar": language}
        if kind == "grammar":
            place = _place_of(value, f"{pointer}/grammar")
            return self._grammar({name: one for name, one in value.items() if name != "origin"}, place)
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
        """A grammar of the values."""
        if "json_schema" in value and _is_native(value):
            check_native_schema(value["json_schema"], self.options.limits, f"{pointer}/json_schema")
            return value
        schema = _Schema(value, pointer, self.spec, self.options)
        whitespace = self.options.whitespace
        text = schema.written(lambda solver, goal: EbnfWriter(solver, whitespace).write(goal))
        self.notices += schema.notices
        return {"type": "grammar", "grammar": text}

    def _grammar(self, value: dict[str, Any], pointer: str) -> dict[str, Any]:
        return {**value, "grammar": _checked_grammar(value, pointer)[0]}


def _checked_grammar(value: dict[str, Any], pointer: str) -> tuple[str, xgrammar.Grammar]:
    """The text of a ``grammar`` format and what xgrammar makes of it."""
    text = value.get("grammar")
    if not isinstance(text, str):
        raise SchemaError("a grammar format needs a 'grammar'", pointer)
    try:
        # Read alone, since what xgrammar says of a whole tag names no part of it.
        if value.get("syntax", "ebnf") == "ebnf":
            text = check_ebnf(text)
            return text, xgrammar.Grammar.from_ebnf(text)
        return text, xgrammar.Grammar.from_lark(text)
    except SchemaError as error:
        raise SchemaError(error.message, pointer) from None
    except RuntimeError as error:
        raise SchemaError(f"invalid grammar: {xgrammar_reason(error)}", pointer) from error


def _part(document: Document, path: Sequence[str]) -> SchemaNode:
    try:
        return document.child(document.root, *path) if path else document.root
    except (KeyError, TypeError):
        raise SchemaError(f"the schema has nothing at {list(path)}") from None

"""One schema document: parsed, checked for well-formedness, its references resolvable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from constrained.json_schema.errors import SchemaError, UnenforceableError
from constrained.json_schema.prepared import Limits
from constrained.json_schema.reading import keywords

_BASE = "http://document.invalid/schema"
_LATEST = 2020


class SchemaNode:
    """A schema at its place in the document. Compared by identity."""

    __slots__ = ("base", "draft", "pointer", "value")

    def __init__(self, value: dict[str, Any] | bool, pointer: str, base: str, draft: int | None) -> None:
        self.value = value
        self.pointer = pointer
        self.base = base
        """URI that references inside are relative to."""
        self.draft = draft
        """``None`` when the document names none: then the keywords of every draft count."""

    @property
    def ref_hides_neighbours(self) -> bool:
        return self.draft in keywords.LEGACY_DRAFTS

    def __repr__(self) -> str:
        return f"SchemaNode({self.pointer or '/'})"


def escape_pointer(name: str) -> str:
    """One reference token of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def parse_json(text: str, limits: Limits, what: str = "the schema", *, exact: bool = True) -> Any:
    """Parse JSON under the limits of size, depth and node count; numbers with a point as decimals if ``exact``.

    Raises
    ------
    SchemaError
        Not JSON, holds a NUL character, or beyond a limit.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limits.max_bytes:
        raise SchemaError(f"{what} is {size:,} bytes long; the limit is {limits.max_bytes:,}")
    if "\0" in text:
        raise SchemaError(f"{what} holds a NUL character at position {text.index(chr(0))}")
    try:
        value = json.loads(
            text,
            parse_float=_parse_decimal if exact else float,
            parse_constant=_refuse_constant,
            parse_int=_parse_integer,
        )
    except json.JSONDecodeError as error:
        where = f"at line {error.lineno}, column {error.colno}"
        raise SchemaError(f"{what} is not valid JSON: {error.msg.removesuffix(' at')} {where}") from None
    except RecursionError:
        raise SchemaError(f"{what} is nested deeper than {limits.max_depth} levels") from None
    _check_shape(value, limits, what)
    return value


def _parse_decimal(text: str) -> Decimal:
    value = Decimal(text)
    if value and abs(value.adjusted()) > 400:
        raise SchemaError(f"the number {text[:40]} is out of range")
    return value


def _parse_integer(text: str) -> int:
    if len(text) > 400:
        raise SchemaError(f"the number {text[:40]}… is out of range")
    return int(text)


def _refuse_constant(text: str) -> None:
    raise SchemaError(f"{text} is not JSON")


def _check_shape(root: Any, limits: Limits, what: str) -> None:
    stack: list[tuple[Any, int]] = [(root, 1)]
    count = 0
    while stack:
        value, depth = stack.pop()
        count += 1
        if depth > limits.max_depth:
            raise SchemaError(f"{what} is nested deeper than {limits.max_depth} levels")
        if isinstance(value, dict):
            stack += [(child, depth + 1) for child in value.values()]
            for key in value:
                _check_text(key, what)
        elif isinstance(value, list):
            stack += [(child, depth + 1) for child in value]
        elif isinstance(value, str):
            _check_text(value, what)
    if count > limits.max_nodes:
        raise SchemaError(f"{what} holds {count:,} values; the limit is {limits.max_nodes:,}")


def _check_text(text: str, what: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SchemaError(f"{what} holds half of a surrogate pair, which no text can contain") from None


class Document:
    """A schema and every place in it that a reference may name."""

    def __init__(self, text: str, limits: Limits, *, strict: bool = False, closes_objects: bool = False) -> None:
        value = parse_json(text, limits)
        if not isinstance(value, dict | bool):
            raise SchemaError(f"a schema is an object or a boolean, not {_kind(value)}")
        self.limits = limits
        self.strict = strict
        self.closes_objects = closes_objects
        """Whether an object that declares properties and says nothing of others takes none, if that leaves values."""
        self._nodes: dict[int, SchemaNode] = {}
        self._resources: dict[str, SchemaNode] = {}
        self._anchors: dict[tuple[str, str], SchemaNode] = {}
        self.dynamic_anchors: dict[str, list[SchemaNode]] = {}
        self._synthetic: dict[tuple[str, str], SchemaNode] = {}
        draft = keywords.draft_of(value.get("$schema")) if isinstance(value, dict) else None
        self.root = SchemaNode(value, "", _BASE, draft)
        self._resources[_BASE] = self.root
        self._index(self.root)

    def child(self, parent: SchemaNode, *path: str | int) -> SchemaNode:
        """Subschema under ``parent``."""
        value: Any = parent.value
        for step in path:
            value = value[step]
        if isinstance(value, dict):
            found = self._nodes.get(id(value))
            if found is not None:
                return found
        pointer = parent.pointer + "".join(f"/{escape_pointer(str(step))}" for step in path)
        if not isinstance(value, dict | bool):
            raise SchemaError(f"a schema is an object or a boolean, not {_kind(value)}", pointer)
        node = SchemaNode(value, pointer, parent.base, parent.draft)
        if isinstance(value, dict):
            self._index(node)
            return self._nodes[id(value)]
        return self.synthetic(value, pointer, parent)

    def synthetic(self, value: dict[str, Any] | bool, pointer: str, like: SchemaNode) -> SchemaNode:
        """A schema that the document does not spell out; equal ones at one place are one node."""
        key = (pointer, repr(value))
        node = self._synthetic.get(key)
        if node is None:
            node = SchemaNode(value, pointer, like.base, _LATEST)
            self._synthetic[key] = node
        return node

    def resolve(self, node: SchemaNode, reference: str, pointer: str) -> SchemaNode:
        """Target of ``$ref``.

        Raises
        ------
        SchemaError
            The reference leaves the document or points nowhere.
        """
        if reference.startswith("#"):
            uri, fragment = node.base, reference[1:]  # urljoin knows no urn:
        else:
            uri, fragment = urldefrag(urljoin(node.base, reference))
        resource = self._resources.get(uri) or self._resources.get(uri.rstrip("#"))
        if resource is None:
            raise SchemaError(
                f"the reference {reference!r} leaves this document; only local references are followed, "
                "so put the definition under $defs",
                pointer,
            )
        fragment = unquote(fragment)
        if not fragment:
            return resource
        if not fragment.startswith("/"):
            found = self._anchors.get((uri, fragment))
            if found is None:
                raise SchemaError(f"the reference {reference!r} names no anchor of this document", pointer)
            return found
        return self._follow(resource, fragment, reference, pointer)

    def _follow(self, resource: SchemaNode, fragment: str, reference: str, pointer: str) -> SchemaNode:
        nearest = resource
        value: Any = resource.value
        path: list[str | int] = []
        for token in fragment[1:].split("/"):
            token = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and token in value:
                path.append(token)
                value = value[token]
            elif isinstance(value, list) and token.isdigit() and int(token) < len(value):
                path.append(int(token))
                value = value[int(token)]
            else:
                raise SchemaError(f"the reference {reference!r} points nowhere", pointer)
            known = self._nodes.get(id(value)) if isinstance(value, dict) else None
            if known is not None:
                nearest, path = known, []
        return self.child(nearest, *path) if path else nearest

    def _index(self, root: SchemaNode) -> None:
        """Check keyword types and register identifiers below ``root``, without recursion."""
        stack = [root]
        while stack:
            node = stack.pop()
            value = node.value
            if not isinstance(value, dict) or id(value) in self._nodes:
                continue
            for keyword, content in value.items():
                complaint = keywords.type_complaint(keyword, content)
                if complaint is not None:
                    raise SchemaError(complaint, f"{node.pointer}/{escape_pointer(keyword)}")
            self._nodes[id(value)] = node
            self._identify(node, value)
            for keyword, limit in (("enum", self.limits.max_enum_values), ("properties", self.limits.max_properties)):
                if len(value.get(keyword, ())) > limit:
                    raise SchemaError(
                        f"{keyword!r} lists {len(value[keyword]):,} entries; the limit is {limit:,}",
                        f"{node.pointer}/{keyword}",
                    )
            stack += reversed(list(self._subschemas(node, value)))

    def _identify(self, node: SchemaNode, value: dict[str, Any]) -> None:
        hidden = node.ref_hides_neighbours and "$ref" in value
        identifier = value.get("$id", value.get("id") if node.draft == 4 else None)
        if isinstance(identifier, str) and not hidden:
            uri, fragment = urldefrag(urljoin(node.base, identifier))
            if fragment and identifier.startswith("#"):
                self._anchors[(node.base, fragment)] = node  # drafts 6 and 7 name anchors with $id
            else:
                node.base = uri
                self._resources.setdefault(uri, node)
                declared = keywords.draft_of(value.get("$schema"))
                node.draft = declared if declared is not None else node.draft
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(value.get(keyword), str):
                self._anchors[(node.base, value[keyword])] = node
        if isinstance(value.get("$dynamicAnchor"), str):
            self.dynamic_anchors.setdefault(value["$dynamicAnchor"], []).append(node)

    def _subschemas(self, node: SchemaNode, value: dict[str, Any]) -> Iterator[SchemaNode]:
        for keyword, content in value.items():
            place = f"{node.pointer}/{escape_pointer(keyword)}"
            if keyword in keywords.SUBSCHEMA or (keyword == "items" and isinstance(content, dict)):
                yield SchemaNode(content, place, node.base, node.draft)
            elif keyword in keywords.SUBSCHEMA_LISTS or (keyword == "items" and isinstance(content, list)):
                for index, one in enumerate(content):
                    yield SchemaNode(one, f"{place}/{index}", node.base, node.draft)
            elif keyword in keywords.SUBSCHEMA_MAPS or keyword == "dependencies":
                for name, one in content.items():
                    if isinstance(one, dict):
                        yield SchemaNode(one, f"{place}/{escape_pointer(name)}", node.base, node.draft)


def unsupported(message: str, node: SchemaNode, keyword: str) -> UnenforceableError:
    """An :class:`UnenforceableError` at a keyword of ``node``."""
    return UnenforceableError(message, f"{node.pointer}/{escape_pointer(keyword)}", keyword=keyword)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    for types, name in (((str,), "a string"), ((list,), "a list"), ((int, Decimal), "a number")):
        if isinstance(value, types):
            return name
    return type(value).__name__

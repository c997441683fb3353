"""Where a keyword of a schema that must hold is being read, and what it can add."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from constrained.json_schema.reading.document import SchemaNode, unsupported
from constrained.json_schema.solving.conjunction import Conjunction, Unevaluated
from constrained.json_schema.solving.shapes import Literal
from constrained.json_schema.solving.solver import Apply, Solver, Step, Work


class Context:
    def __init__(self, solver: Solver, step: Step) -> None:
        self.solver = solver
        self.document = solver.document
        self.node: SchemaNode = step.literal.node
        assert isinstance(self.node.value, dict)
        self.value: dict[str, Any] = self.node.value
        self.scopes = step.scopes
        self.ancestors = step.ancestors | {self.node}

    def pointer(self, keyword: str) -> str:
        return f"{self.node.pointer}/{keyword}"

    def child(self, *path: str | int, is_positive: bool = True) -> Literal:
        return Literal(self.document.child(self.node, *path), is_positive)

    def in_place(self, literal: Literal) -> Step:
        return Step(literal, self.scopes, self.ancestors)

    def limit(self, change: Callable[[Conjunction], None], keyword: str) -> list[Work]:
        """A change whose place is remembered for messages."""

        def apply(conjunction: Conjunction) -> None:
            conjunction.pointers[keyword] = self.pointer(keyword)
            change(conjunction)

        return [Apply(apply)]

    def open_scope(self) -> list[Work]:
        """Everything applied in place from here counts as evaluated for ``unevaluated…``."""
        scope, outer = self.solver.new_scope(), self.scopes
        self.scopes = (*outer, scope)
        work: list[Work] = []
        if "unevaluatedProperties" in self.value:
            properties = Unevaluated(scope, outer, self.child("unevaluatedProperties"))
            work.append(Apply(lambda c: setattr(c, "unevaluated_properties", (*c.unevaluated_properties, properties))))
        if "unevaluatedItems" in self.value:
            items = Unevaluated(scope, outer, self.child("unevaluatedItems"))
            work.append(Apply(lambda c: setattr(c, "unevaluated_items", (*c.unevaluated_items, items))))
        return work

    def reference(self, keyword: str) -> Iterator[Work]:
        reference = self.value[keyword]
        target = self.document.resolve(self.node, reference, self.pointer(keyword))
        if keyword != "$ref":
            target = self.dynamic_target(keyword, reference, target)
        yield self.in_place(Literal(target, True))

    def dynamic_target(self, keyword: str, reference: str, target: SchemaNode) -> SchemaNode:
        name = reference.partition("#")[2]
        if keyword == "$recursiveRef":
            if any("$recursiveAnchor" in n.value for n in (self.document.root, target) if isinstance(n.value, dict)):
                raise unsupported("$recursiveRef with $recursiveAnchor is not supported; use $ref", self.node, keyword)
            return target
        is_dynamic = isinstance(target.value, dict) and target.value.get("$dynamicAnchor") == name
        if is_dynamic and len(self.document.dynamic_anchors.get(name, ())) > 1:
            raise unsupported(
                f"several places declare $dynamicAnchor {name!r}, so the target depends on the path; use $ref",
                self.node,
                keyword,
            )
        return target


Handler = Callable[[Context, Any], list[Work]]
"""From a keyword's value to the work it stands for."""

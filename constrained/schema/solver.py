"""From schemas that hold together to the shapes their value may have: a disjunctive normal form, unfolded lazily."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from constrained.schema.conjunction import Conjunction, Scopes
from constrained.schema.document import Document, SchemaNode
from constrained.schema.errors import SchemaError, UnenforceableError
from constrained.schema.prepared import Notice
from constrained.schema.shapes import ArrayShape, Goal, Literal, ObjectShape, Shape

_OBJECT = frozenset({"object"})
_LEVELS = 2
_MAX_NESTED_TESTS = 6
_MAX_TOTAL_BRANCHES = 200_000


@dataclass(frozen=True)
class Step:
    """Take a literal's keywords into the conjunction."""

    literal: Literal
    scopes: Scopes = ()
    ancestors: frozenset[SchemaNode] = frozenset()
    """Schemas being unfolded at this very value: meeting one again is a circle."""


@dataclass(frozen=True)
class Apply:
    """Change the conjunction."""

    change: Callable[[Conjunction], None]


@dataclass(frozen=True)
class Choice:
    """Any one of several sequences of further work."""

    options: Sequence[Sequence[Step | Apply | Choice]]
    pointer: str


Work = Step | Apply | Choice


class Solver:
    """Unfolds goals; every goal once.

    Parameters
    ----------
    document
        Where the literals live.
    lenient
        Take note of what cannot be enforced, and go on, instead of raising.
    """

    def __init__(self, document: Document, *, lenient: bool = False) -> None:
        self.document = document
        self.limits = document.limits
        self.lenient = lenient
        self._shapes: dict[Goal, tuple[Shape, ...]] = {}
        self._inhabited: dict[Goal, bool] = {}
        self._notices: dict[tuple[str, str], None] = {}
        self._unfolding: set[Goal] = set()
        self._testing = 0
        self._next_scope = 0
        self._total_branches = 0

    @property
    def notices(self) -> tuple[Notice, ...]:
        return tuple(Notice(*one) for one in self._notices)

    def notice(self, pointer: str, message: str) -> None:
        self._notices[(pointer, message)] = None

    def give_up(self, error: UnenforceableError) -> None:
        """Raise ``error``, or note it when the request is lenient."""
        if not self.lenient:
            raise error
        self.notice(error.pointer, f"not enforced: {error.message}")

    def new_scope(self) -> int:
        self._next_scope += 1
        return self._next_scope

    def shapes(self, goal: Goal) -> tuple[Shape, ...]:
        """Alternatives of ``goal``; none when nothing can satisfy it by the look of this level alone."""
        found = self._shapes.get(goal)
        if found is None:
            from constrained.schema.finish import finish

            self._unfolding.add(goal)
            try:
                branches = self.unfold([Step(literal) for literal in sorted(goal, key=_order)])
            finally:
                self._unfolding.discard(goal)
            found = tuple(dict.fromkeys(shape for branch in branches for shape in finish(self, branch)))
            self._shapes[goal] = found
        return found

    def unfold(self, work: Sequence[Work]) -> list[Conjunction]:
        """Conjunctions that ``work`` unfolds into."""
        results: list[Conjunction] = []
        self._run(Conjunction(), list(reversed(work)), results)
        return results

    def _run(self, conjunction: Conjunction, stack: list[Work], results: list[Conjunction]) -> None:
        from constrained.schema.negative import expand_negative
        from constrained.schema.positive import expand_positive

        while stack:
            if conjunction.is_dead:
                return
            work = stack.pop()
            if isinstance(work, Apply):
                work.change(conjunction)
            elif isinstance(work, Choice):
                if self._is_contradictory(conjunction):
                    return
                for option in work.options[:-1]:
                    self._run(conjunction.copy(), [*stack, *reversed(option)], results)
                if not work.options:
                    return
                stack += reversed(work.options[-1])
            else:
                if work.literal.node in work.ancestors:
                    raise SchemaError(
                        "the references lead in a circle without ever reaching a value", work.literal.node.pointer
                    )
                key = (work.literal, work.scopes)
                if key in conjunction.seen:
                    continue
                conjunction.seen |= {key}
                expand = expand_positive if work.literal.is_positive else expand_negative
                stack += reversed(expand(self, work))
        if conjunction.is_dead or self._is_contradictory(conjunction):
            return
        results.append(conjunction)
        self._total_branches += 1
        if len(results) > self.limits.max_branches or self._total_branches > _MAX_TOTAL_BRANCHES:
            raise UnenforceableError(
                "the alternatives at this place multiply to more than "
                f"{self.limits.max_branches}; combine fewer anyOf, oneOf, if and dependencies",
                next((p for p in conjunction.pointers.values()), ""),
            )

    def is_inhabited(self, goal: Goal) -> bool:
        """Whether some finite value satisfies ``goal``, as far as the shapes tell."""
        known = self._inhabited.get(goal)
        if known is not None:
            return known
        needs: dict[Goal, list[list[Goal]]] = {}
        pending = [goal]
        while pending:
            one = pending.pop()
            if one in needs or one in self._inhabited:
                continue
            needs[one] = [_needed(shape) for shape in self.shapes(one)]
            pending += [child for option in needs[one] for child in option]
        inhabited: set[Goal] = set()
        changed = True
        while changed:
            changed = False
            for one, options in needs.items():
                if one not in inhabited and any(
                    all(child in inhabited or self._inhabited.get(child) for child in option) for option in options
                ):
                    inhabited.add(one)
                    changed = True
        for one in needs:
            self._inhabited[one] = one in inhabited
        return self._inhabited[goal]

    def are_disjoint(self, *literals: Literal) -> bool:
        """Whether no value satisfies all the literals, as far as a few levels tell."""
        return self.is_plainly_empty(frozenset(literals))

    def is_plainly_empty(self, goal: Goal, levels: int = _LEVELS) -> bool:
        """Whether contradictions within a few levels rule every value out; ``False`` when in doubt.

        Unlike :meth:`is_inhabited` this may be asked while goals are being unfolded.
        """
        if goal in self._unfolding or self._testing >= _MAX_NESTED_TESTS:
            return False
        self._testing += 1
        try:
            return all(
                levels > 0 and any(self.is_plainly_empty(child, levels - 1) for child in _needed(shape))
                for shape in self.shapes(goal)
            )
        finally:
            self._testing -= 1

    def _is_contradictory(self, conjunction: Conjunction) -> bool:
        """Whether objects are ruled out by a required property, and nothing else is possible."""
        if conjunction.atoms != _OBJECT or not conjunction.required:
            return False
        if not conjunction.absent.isdisjoint(conjunction.required):
            return True
        for name in conjunction.required:
            literals = {group.properties[name] for group in conjunction.property_groups if name in group.properties}
            if len(literals) > 1 and self.is_plainly_empty(frozenset(literals), 0):
                return True
        return False


def _needed(shape: Shape) -> list[Goal]:
    """Goals of the values that an instance of ``shape`` cannot do without."""
    if isinstance(shape, ObjectShape):
        needed = [one.goal for one in shape.properties if one.is_required]
        return needed + [one.goal for one in shape.needed_extra]
    if isinstance(shape, ArrayShape):
        needed = list(shape.prefix[: shape.min_items])
        if shape.min_items > len(shape.prefix) and shape.rest is not None:
            needed.append(shape.rest)
        return needed
    return []


def _order(literal: Literal) -> tuple[str, bool]:
    return literal.node.pointer, not literal.is_positive

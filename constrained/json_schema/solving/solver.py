"""From schemas that hold together to the shapes their value may have: a disjunctive normal form, unfolded lazily."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from constrained.json_schema.errors import SchemaError, UnenforceableError
from constrained.json_schema.prepared import Notice
from constrained.json_schema.reading.document import Document, SchemaNode
from constrained.json_schema.solving.conjunction import Conjunction, Scopes
from constrained.json_schema.solving.shapes import ArrayShape, Goal, Literal, ObjectShape, Shape

_LEVELS = 2
_MAX_LENIENT_BRANCHES = 64
"""What alternatives may multiply to once some are left out: as many as the limit would be slow to compile."""
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


class TooManyBranchesError(UnenforceableError):
    """The alternatives multiply.

    Parameters
    ----------
    choices
        Pointers of those that were taken on the way.
    """

    def __init__(self, message: str, pointer: str, choices: Sequence[str]) -> None:
        super().__init__(message, pointer)
        self.choices = choices


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
        self._explanation: SchemaError | None = None
        self._why_empty: dict[Goal, SchemaError] = {}
        self.left_out: set[str] = set()
        """Pointers of alternatives that a lenient request goes without."""

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
            from constrained.json_schema.solving.finish import finish

            self._unfolding.add(goal)
            outer = self._take_explanation()
            try:
                branches = self._branches([Step(literal) for literal in sorted(goal, key=_order)])
                found = tuple(dict.fromkeys(shape for branch in branches for shape in finish(self, branch)))
            finally:
                self._unfolding.discard(goal)
                explanation, self._explanation = self._take_explanation(), outer
            self._shapes[goal] = found
            if not found and explanation is not None:
                self._why_empty[goal] = explanation
        return found

    def _branches(self, work: Sequence[Work]) -> list[Conjunction]:
        """Conjunctions that ``work`` unfolds into; lenient, those without the alternatives that multiply too much."""
        from constrained.json_schema.solving.unfolding import Unfolding

        left_out = 1
        while True:
            try:
                return Unfolding(self, _MAX_LENIENT_BRANCHES if self.left_out else self.limits.max_branches).run(work)
            except TooManyBranchesError as error:
                last = [pointer for pointer in error.choices if pointer not in self.left_out][-left_out:]
                if not last or not self.lenient:
                    raise
                for pointer in last:
                    self.notice(pointer, f"not enforced: {error.message}")
                self.left_out.update(last)
                left_out *= 2

    def count_branch(self) -> bool:
        """Whether the whole document may unfold into one more branch."""
        self._total_branches += 1
        return self._total_branches <= _MAX_TOTAL_BRANCHES

    def is_inhabited(self, goal: Goal) -> bool:
        """Whether some finite value satisfies ``goal``."""
        from constrained.json_schema.solving.inhabited import goals_to_look_at, is_possible

        known = self._inhabited.get(goal)
        if known is not None:
            return known
        shapes: dict[Goal, tuple[Shape, ...]] = {}
        pending = [goal]
        while pending:
            one = pending.pop()
            if one in shapes or one in self._inhabited:
                continue
            shapes[one] = self.shapes(one)
            pending += [child for shape in shapes[one] for child in goals_to_look_at(self, shape)]
        inhabited: set[Goal] = set()
        changed = True
        while changed:
            changed = False
            for one in reversed(shapes):
                if one not in inhabited and any(
                    is_possible(self, shape, lambda g: g in inhabited or self._inhabited.get(g, False))
                    for shape in shapes[one]
                ):
                    inhabited.add(one)
                    changed = True
        for one in shapes:
            self._inhabited[one] = one in inhabited
            if one not in inhabited and self.document.strict and len(one) == 1 and one in self._why_empty:
                raise self._why_empty[one]
        if goal not in inhabited:
            why = next((self._why_empty[one] for one in shapes if one in self._why_empty), None)
            if why is not None:
                self._why_empty.setdefault(goal, why)
        return goal in inhabited

    def explain(self, message: str, pointer: str) -> None:
        """Say why the goal that is being unfolded may have no values."""
        self._explanation = self._explanation or SchemaError(message, pointer)

    def _take_explanation(self) -> SchemaError | None:
        taken, self._explanation = self._explanation, None
        return taken

    def why_empty(self, goal: Goal) -> SchemaError:
        """What to tell of a goal without values."""
        contradiction = SchemaError("no value satisfies this schema: its constraints contradict each other")
        return self._why_empty.get(goal, contradiction)

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

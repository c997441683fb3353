"""From work on one value to the conjunctions it stands for: a disjunctive normal form.

Alternatives on objects wait until everything else is known. Those that name different properties do not multiply: they
stay together, as conditions of one object (:class:`constrained.json_schema.solving.shapes.Option`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from constrained.json_schema.errors import SchemaError
from constrained.json_schema.solving.conjunction import Conjunction, PropertyGroup, literals_for
from constrained.json_schema.solving.finish_object import explain_required
from constrained.json_schema.solving.shapes import Condition, Option, goal_of, is_plainly_empty
from constrained.json_schema.solving.solver import Apply, Choice, Step, TooManyBranchesError, Work

if TYPE_CHECKING:
    from constrained.json_schema.solving.solver import Solver

_OBJECT = frozenset({"object"})
_MAX_OPTIONS = 64
"""Most options of one condition."""
_FREE_CHOICES = 2
"""Alternatives that are taken in turn before it is worth a look whether they say anything of values like these."""


class Unfolding:
    """One unfolding.

    Parameters
    ----------
    solver
        Answers for schemas.
    max_branches
        Most conjunctions of objects, and most of other values.
    is_whole
        Whether the work is all there is to know of a value. A part of it is unfolded as it stands.
    """

    def __init__(self, solver: Solver, max_branches: int, *, is_whole: bool = True) -> None:
        self._solver = solver
        self._max_branches = max_branches
        self._is_whole = is_whole
        self._results: list[Conjunction] = []
        self._objects = 0
        self._apart: dict[int, Choice] = {}
        """Alternatives that cannot be a condition, by id."""

    def run(self, work: Sequence[Work], start: Conjunction | None = None) -> list[Conjunction]:
        """Conjunctions of ``start`` and the work.

        Raises
        ------
        TooManyBranchesError
            Beyond the limit.
        """
        self._run(start or Conjunction(), list(reversed(work)), ())
        return self._results

    def _run(self, conjunction: Conjunction, stack: list[Work], taken: tuple[str, ...]) -> None:
        waiting: Choice | None = None
        while not conjunction.is_dead:
            if not stack:
                if self._is_contradictory(conjunction):
                    return
                waiting = self._next_waiting(conjunction)
                if waiting is None:
                    self._add(conjunction, taken)
                    return
                stack = [_put(waiting, len(conjunction.property_groups))]
                work: Work = waiting
            else:
                work = stack.pop()
            if isinstance(work, Apply):
                work.change(conjunction)
            elif isinstance(work, Step):
                stack += reversed(self._expand(conjunction, work))
            elif work.pointer not in self._solver.left_out:
                if self._is_contradictory(conjunction):
                    return
                if work is not waiting and self._may_wait(conjunction):
                    if conjunction.atoms != _OBJECT:
                        others = conjunction.copy()
                        others.restrict(conjunction.atoms - _OBJECT)
                        self._run(others, [*stack, work], taken)
                        conjunction.restrict(_OBJECT)
                    conjunction.property_groups += (PropertyGroup({}, choice=work),)
                    continue
                if not work.options:
                    return
                if len(taken) > _FREE_CHOICES and self._is_met_anyway(conjunction, work):
                    continue
                taken = (*taken, work.pointer)
                for option in work.options[:-1]:
                    self._run(conjunction.copy(), [*stack, *reversed(option)], taken)
                stack += reversed(work.options[-1])

    def _expand(self, conjunction: Conjunction, work: Step) -> list[Work]:
        from constrained.json_schema.reading.negative import expand_negative
        from constrained.json_schema.reading.positive import expand_positive

        if work.literal.node in work.ancestors:
            raise SchemaError(
                "the references lead in a circle without ever reaching a value", work.literal.node.pointer
            )
        key = (work.literal, work.scopes)
        if key in conjunction.seen:
            return []
        if any(one.node is work.literal.node and one != work.literal for one, _ in conjunction.seen):
            conjunction.restrict(frozenset())  # it would have to hold and not to hold
            return []
        conjunction.seen |= {key}
        return (expand_positive if work.literal.is_positive else expand_negative)(self._solver, work)

    def _add(self, conjunction: Conjunction, taken: tuple[str, ...]) -> None:
        self._results.append(conjunction)
        self._objects += conjunction.atoms == _OBJECT
        too_many = max(self._objects, len(self._results) - self._objects) > self._max_branches
        if too_many or not self._solver.count_branch():
            raise TooManyBranchesError(
                f"the alternatives at this place multiply to more than {self._max_branches}; combine fewer anyOf, "
                "oneOf, if and dependencies",
                next((p for p in conjunction.pointers.values()), ""),
                taken,
            )

    def _is_contradictory(self, conjunction: Conjunction) -> bool:
        """Whether objects are ruled out by a required property, and nothing else is possible."""
        if conjunction.atoms != _OBJECT or not conjunction.required:
            return False
        if not conjunction.absent.isdisjoint(conjunction.required):
            return True
        for name in conjunction.required:
            literals = frozenset(literals_for(name, conjunction.property_groups))
            if is_plainly_empty(literals):
                explain_required(self._solver, conjunction, name)
                return True
            if len(literals) > 1 and self._solver.is_plainly_empty(literals, 0):
                return True
        return False

    def _may_wait(self, conjunction: Conjunction) -> bool:
        """What counts as looked at for ``unevaluated…`` depends on the alternative, so that none waits there."""
        return (
            self._is_whole
            and "object" in conjunction.atoms
            and not conjunction.unevaluated_properties
            and not conjunction.unevaluated_items
        )

    def _next_waiting(self, conjunction: Conjunction) -> Choice | None:
        """Alternatives to take now, once those that can stay together are conditions."""
        waiting = [group.choice for group in conjunction.property_groups if group.choice is not None]
        untried = [one for one in waiting if id(one) not in self._apart]
        if len(waiting) > 1 and untried:
            self._keep_together(conjunction, untried)
            waiting = [group.choice for group in conjunction.property_groups if group.choice is not None]
        return waiting[0] if waiting else None

    def _keep_together(self, conjunction: Conjunction, waiting: list[Choice]) -> None:
        parts: list[tuple[list[Choice], Condition]] = []
        for one in waiting:
            condition = self._condition([one])
            if condition is None:
                self._apart[id(one)] = one
                continue
            # Conditions on one property contradict each other more often than not: they are one.
            names = condition.names
            related = [part for part in parts if not part[1].names.isdisjoint(names)]
            choices = [*(choice for part in related for choice in part[0]), one]
            joint = self._condition(choices) if related else condition
            if joint is not None:
                parts = [part for part in parts if part not in related]
            parts.append((choices, joint) if joint is not None else ([one], condition))
        if len(parts) == 1 and len(parts[0][0]) == len(waiting):
            self._apart.update((id(one), one) for one in waiting)
            return
        placed = {id(choices[0]): condition for choices, condition in parts}
        dropped = {id(one) for choices, _ in parts for one in choices}
        groups: list[PropertyGroup] = []
        for group in conjunction.property_groups:
            condition = placed.get(id(group.choice))
            if condition is not None:
                groups.append(PropertyGroup({}, condition=condition))
            elif id(group.choice) not in dropped:
                groups.append(group)
        conjunction.property_groups = tuple(groups)
        if not all(condition.options for _, condition in parts):
            conjunction.restrict(frozenset())

    def _is_met_anyway(self, conjunction: Conjunction, choice: Choice) -> bool:
        """Whether one of the alternatives says nothing of values that are no objects, where those are asked for."""
        if "object" in conjunction.atoms or not self._is_whole:
            return False
        start = Conjunction(atoms=conjunction.atoms)
        try:
            found = Unfolding(self._solver, _MAX_OPTIONS, is_whole=False).run([choice], start.copy())
        except TooManyBranchesError:
            return False
        return any(_without_objects(one) == start for one in found)

    def _condition(self, choices: Sequence[Choice]) -> Condition | None:
        """The alternatives as options; ``None`` where one does more than to name properties, or where they are many."""
        start = Conjunction(atoms=_OBJECT)
        try:
            found = Unfolding(self._solver, _MAX_OPTIONS, is_whole=False).run(list(choices), start)
        except TooManyBranchesError:
            return None
        options = [_option(one) for one in found]
        kept = tuple(dict.fromkeys(one for one in options if one is not None))
        return None if None in options else Condition(kept, choices[0].pointer)


def _without_objects(conjunction: Conjunction) -> Conjunction:
    return replace(
        conjunction,
        property_groups=(),
        required=(),
        absent=frozenset(),
        name_literals=(),
        needed_keys=(),
        min_properties=0,
        max_properties=None,
        unevaluated_properties=(),
        seen=frozenset(),
        pointers={},
    )


def _option(conjunction: Conjunction) -> Option | None:
    groups = conjunction.property_groups
    if any(group.patterns or group.additional is not None or group.choice or group.condition for group in groups):
        return None
    if (
        conjunction.name_literals
        or conjunction.needed_keys
        or conjunction.min_properties
        or conjunction.max_properties is not None
        or conjunction.unevaluated_properties
        or conjunction.unevaluated_items
    ):
        return None
    names = dict.fromkeys(name for group in groups for name in group.properties)
    goals = tuple((name, goal_of(literals_for(name, groups))) for name in names)
    return Option(conjunction.required, conjunction.absent, goals)


def _put(choice: Choice, count: int) -> Apply:
    """Moves what was added behind the first ``count`` groups to the place where the choice waited."""

    def change(conjunction: Conjunction) -> None:
        groups = conjunction.property_groups
        at = next(i for i, group in enumerate(groups) if group.choice is choice)
        conjunction.property_groups = (*groups[:at], *groups[count:], *groups[at + 1 : count])

    return Apply(change)

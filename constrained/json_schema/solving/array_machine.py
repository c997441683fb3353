"""Arrays with ``contains``: an automaton over the position and the members counted so far."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from constrained.json_schema.errors import UnenforceableError
from constrained.json_schema.solving.shapes import ArrayShape, Contains, Goal, Literal, goal_of

State = tuple[int, tuple[int, ...]]
"""Position, and members of each ``contains`` so far; both only as far as they matter."""

_MAX_STATES = 3_000


class ArrayMachine:
    """States from which an array of the shape can still be completed.

    Parameters
    ----------
    shape
        The arrays, with their ``contains``.
    is_inhabited
        Whether a goal has a value: items that can have none are left out.
    """

    def __init__(self, shape: ArrayShape, is_inhabited: Callable[[Goal], bool]) -> None:
        self._shape = shape
        self._contains = shape.contains
        self._is_inhabited = is_inhabited
        starts = max((one.start for one in shape.contains), default=0)
        self._bound = max(len(shape.prefix), starts, shape.min_items)
        if shape.max_items is not None:
            self._bound = shape.max_items
        self._caps = tuple(one.low if one.high is None else one.high + 1 for one in shape.contains)
        size = self._bound + 1
        for cap in self._caps:
            size *= cap + 1
        if size > _MAX_STATES:
            raise UnenforceableError("contains on an array this long", shape.contains[0].pointer)
        self.start: State = (0, (0,) * len(shape.contains))
        steps: dict[State, list[tuple[Goal, State]]] = {}
        pending = [self.start]
        while pending:
            state = pending.pop()
            if state not in steps:
                steps[state] = self._steps(state)
                pending += [after for _, after in steps[state]]
        alive = _alive(steps, {state for state in steps if self.is_final(state)})
        self.steps = {
            state: [one for one in found if one[1] in alive] for state, found in steps.items() if state in alive
        }
        """Of each live state the items that lead to a live one. Without the start state there is no such array."""

    def is_final(self, state: State) -> bool:
        position, hits = state
        enough = all(hit >= one.low for hit, one in zip(hits, self._contains, strict=True))
        return enough and position >= self._shape.min_items

    def _steps(self, state: State) -> list[tuple[Goal, State]]:
        position, hits = state
        if self._shape.max_items is not None and position >= self._shape.max_items:
            return []
        is_prefix = position < len(self._shape.prefix)
        base = self._shape.prefix[position] if is_prefix else self._shape.rest
        if base is None:
            return []
        found = []
        for choice in product((False, True), repeat=len(self._contains)):
            goal, after = base, list(hits)
            possible = True
            for index, (is_hit, one) in enumerate(zip(choice, self._contains, strict=True)):
                if position < one.start:
                    possible = possible and not is_hit
                elif is_hit:
                    goal |= one.goal
                    after[index] = min(hits[index] + 1, self._caps[index])
                    possible = possible and (one.high is None or after[index] <= one.high)
                elif one.high is not None:
                    goal |= _opposite(one)
            if possible and not _is_covered(choice, hits, self._caps) and self._is_inhabited(goal_of(goal)):
                found.append((goal_of(goal), (min(position + 1, self._bound), tuple(after))))
        return found


def _alive(steps: dict[State, list[tuple[Goal, State]]], finals: set[State]) -> set[State]:
    sources: dict[State, list[State]] = {}
    for state, found in steps.items():
        for _, after in found:
            sources.setdefault(after, []).append(state)
    alive, pending = set(finals), list(finals)
    while pending:
        for source in sources.get(pending.pop(), ()):
            if source not in alive:
                alive.add(source)
                pending.append(source)
    return alive


def _is_covered(choice: tuple[bool, ...], hits: tuple[int, ...], caps: tuple[int, ...]) -> bool:
    """A further hit of a count that is already full changes nothing."""
    return any(is_hit and hit >= cap for is_hit, hit, cap in zip(choice, hits, caps, strict=True))


def _opposite(one: Contains) -> Goal:
    if len(one.goal) != 1:
        raise UnenforceableError("an upper bound on several schemas at once", one.pointer)
    (literal,) = one.goal
    return frozenset({Literal(literal.node, not literal.is_positive)})

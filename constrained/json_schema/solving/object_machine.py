"""Objects: an automaton over the declared properties in their order, counted and conditioned only as far as needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from constrained.json_schema.errors import UnenforceableError
from constrained.json_schema.solving.shapes import Condition, Goal, ObjectShape, Option, Property, goal_of

State = tuple[int, tuple[int, ...]]
"""Members so far, and of each condition the options that are still open, as bits; 0: it holds whatever follows."""

_MAX_STATES = 10_000
_MAX_WAYS = 256


@dataclass(frozen=True)
class Move:
    """What may happen at one property."""

    skipped: State | None
    """State after it where the property is left out; ``None``: it must not be."""
    taken: tuple[tuple[Goal, State], ...]
    """Values it may have, and the states after them."""


class ObjectMachine:
    """States from which an object of the shape can still be completed, property by property.

    Conditions on different properties do not multiply: once the last property that a condition names is past, it is
    out of the state.

    Parameters
    ----------
    shape
        The objects.
    is_inhabited
        Whether a goal has a value: values that can be none are left out.

    Raises
    ------
    UnenforceableError
        Beyond a number of states.
    """

    def __init__(self, shape: ObjectShape, is_inhabited: Callable[[Goal], bool]) -> None:
        self.shape = shape
        self._is_inhabited = is_inhabited
        self.has_extra = any(is_inhabited(one.goal) for one in shape.extra)
        self._can_have_needed = all(is_inhabited(one.goal) for one in shape.needed_extra)
        required = sum(one.is_required for one in shape.properties) + len(shape.needed_extra)
        self.low = shape.min_properties if shape.min_properties > required else 0
        self.high = shape.max_properties
        if self.high is not None and not self.has_extra and self.high >= len(shape.properties):
            self.high = None
        self._conditions = [_Tracked(one, shape.properties) for one in shape.conditions]
        self._pointer = shape.conditions[-1].pointer if shape.conditions else shape.pointer
        self.start: State = (0, tuple(one.start for one in self._conditions))
        self.layers = self._live(self._reachable(self.start))
        """For each property the live states before it and what may happen there; behind the last one, no moves."""

    @property
    def is_possible(self) -> bool:
        return self.start in self.layers[0]

    def room(self, state: State) -> tuple[int, int | None] | None:
        """Least and greatest number of undeclared members behind the properties; ``None`` where none fits."""
        low, high = max(self.low - state[0], 0), None if self.high is None else self.high - state[0]
        low = max(low, len(self.shape.needed_extra))
        if not self._can_have_needed or (low > 0 and not self.has_extra) or (high is not None and low > high):
            return None
        return low, high

    def _reachable(self, start: State) -> list[dict[State, Move]]:
        layers: list[dict[State, Move]] = []
        states: dict[State, None] = {start: None}
        count = 0
        for index, one in enumerate(self.shape.properties):
            layers.append({state: self._move(index, one, state) for state in states})
            states = {after: None for move in layers[-1].values() for after in _targets(move)}
            count += len(states)
            if count > _MAX_STATES:
                raise UnenforceableError("so many conditions on the properties of one object", self._pointer)
        layers.append({state: Move(None, ()) for state in states if self.room(state) is not None})
        return layers

    def _live(self, layers: list[dict[State, Move]]) -> list[dict[State, Move]]:
        for index in range(len(layers) - 2, -1, -1):
            after = layers[index + 1]
            kept: dict[State, Move] = {}
            for state, move in layers[index].items():
                skipped = move.skipped if move.skipped in after else None
                taken = tuple(one for one in move.taken if one[1] in after)
                if skipped is not None or taken:
                    kept[state] = Move(skipped, taken)
            layers[index] = kept
        return layers

    def _move(self, index: int, one: Property, state: State) -> Move:
        count, alive = state
        skipped = None if one.is_required else self._without(index, one.name, count, alive)
        following = self._count(count + 1)
        taken: dict[tuple[Goal, State], None] = {}
        if self.high is None or following <= self.high:
            # Where the property is closed otherwise, each condition in turn is the one that declares it.
            for declaring in range(len(alive)) if one.is_conditional else (None,):
                ways = [
                    list(tracked.with_key(index, one.name, bits, must_declare=number == declaring))
                    for number, (tracked, bits) in enumerate(zip(self._conditions, alive, strict=True))
                ]
                if prod(map(len, ways)) > _MAX_WAYS:
                    raise UnenforceableError(f"so many conditions on the property {one.name!r}", self._pointer)
                for chosen in product(*ways):
                    goal = goal_of(one.goal.union(*(literals for literals, _ in chosen)))
                    if self._is_inhabited(goal):
                        taken[(goal, (following, tuple(bits for _, bits in chosen)))] = None
        return Move(skipped, tuple(taken))

    def _without(self, index: int, name: str, count: int, alive: tuple[int, ...]) -> State | None:
        after = []
        for tracked, bits in zip(self._conditions, alive, strict=True):
            left = tracked.without_key(index, name, bits)
            if left is None:
                return None
            after.append(left)
        return count, tuple(after)

    def _count(self, count: int) -> int:
        """Counts that no bound tells apart are one."""
        return min(count, self.low) if self.high is None else count


def _targets(move: Move) -> Iterator[State]:
    if move.skipped is not None:
        yield move.skipped
    for _, after in move.taken:
        yield after


class _Tracked:
    """A condition and the options that are open; of those that say the same of what is left, the first.

    None is open once one of them has nothing left to say.
    """

    def __init__(self, condition: Condition, properties: tuple[Property, ...]) -> None:
        self._options = condition.options
        self._goals = [dict(one.goals) for one in self._options]
        self._places = {one.name: index for index, one in enumerate(properties)}
        self._same: dict[int, list[int | None]] = {}
        self.start = self._settled((1 << len(self._options)) - 1, -1)

    def with_key(self, index: int, name: str, bits: int, *, must_declare: bool) -> Iterator[tuple[Goal, int]]:
        """Schemas that the key's value may satisfy, and the options that are open then."""
        if not bits:
            if not must_declare:
                yield frozenset(), 0
            return
        open_options = [i for i in _bits(bits) if name not in self._options[i].absent]
        if must_declare:
            open_options = [i for i in open_options if name in self._goals[i] or name in self._options[i].required]
        wanted = {i: self._goals[i].get(name, frozenset()) for i in open_options}
        for goal in dict.fromkeys(wanted.values()):
            yield goal, self._settled(sum(1 << i for i in open_options if wanted[i] <= goal), index)

    def without_key(self, index: int, name: str, bits: int) -> int | None:
        """The options that are open without the key; ``None``: none is."""
        if not bits:
            return 0
        left = sum(1 << i for i in _bits(bits) if name not in self._options[i].required)
        return self._settled(left, index) if left else None

    def _settled(self, bits: int, index: int) -> int:
        if index not in self._same:
            first: dict[Option, int] = {}
            left = [self._left(one, index) for one in self._options]
            self._same[index] = [first.setdefault(one, i) if one.names else None for i, one in enumerate(left)]
        found = {self._same[index][i] for i in _bits(bits)}
        return 0 if None in found else sum(1 << i for i in found if i is not None)

    def _left(self, one: Option, index: int) -> Option:
        """What an option says of the properties behind ``index``."""

        def is_left(name: str) -> bool:
            return self._places.get(name, -1) > index

        return Option(
            tuple(sorted(filter(is_left, one.required))),
            frozenset(filter(is_left, one.absent)),
            tuple(sorted((pair for pair in one.goals if is_left(pair[0])), key=lambda pair: pair[0])),
        )


def _bits(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low

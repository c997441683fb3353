"""Deterministic automata of languages with set operators, for engines that have none."""

from __future__ import annotations

from dataclasses import dataclass

from constrained.patterns import charset, tree
from constrained.patterns.charset import CharSet
from constrained.patterns.derivative import derive, first_intervals, nullable
from constrained.patterns.tree import Node

_MAX_STATES = 1_500


@dataclass(frozen=True)
class State:
    is_final: bool
    edges: tuple[tuple[CharSet, int], ...]
    """(characters, index of the state they lead to); the sets are disjoint."""


@dataclass(frozen=True)
class Automaton:
    states: tuple[State, ...]
    """The first is the start. Every state can reach a final one."""


def determinise(node: Node, max_states: int = _MAX_STATES) -> Automaton | None:
    """Automaton of a language, or ``None`` beyond ``max_states`` or for the empty language."""
    numbers: dict[Node, int] = {node: 0}
    queue = [node]
    edges: list[dict[int, list[tuple[int, int]]]] = []
    for state in queue:  # grows while it is walked
        out: dict[int, list[tuple[int, int]]] = {}
        for low, high in first_intervals(state):
            after = derive(state, low)
            if after == tree.NOTHING:
                continue
            if after not in numbers:
                if len(numbers) >= max_states:
                    return None
                numbers[after] = len(numbers)
                queue.append(after)
            out.setdefault(numbers[after], []).append((low, high))
        edges.append(out)
    finals = [nullable(state) for state in queue]
    alive = _alive(edges, finals)
    if 0 not in alive:
        return None
    order = {old: new for new, old in enumerate(sorted(alive))}
    return Automaton(
        tuple(
            State(finals[old], tuple((charset.normalise(i), order[t]) for t, i in edges[old].items() if t in alive))
            for old in sorted(alive)
        )
    )


def _alive(edges: list[dict[int, list[tuple[int, int]]]], finals: list[bool]) -> set[int]:
    sources: dict[int, set[int]] = {}
    for source, out in enumerate(edges):
        for target in out:
            sources.setdefault(target, set()).add(source)
    alive = {index for index, is_final in enumerate(finals) if is_final}
    pending = list(alive)
    while pending:
        for source in sources.get(pending.pop(), ()):
            if source not in alive:
                alive.add(source)
                pending.append(source)
    return alive

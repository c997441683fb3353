"""Brzozowski derivatives, and the questions a deterministic automaton answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise, product

from constrained.patterns import charset, tree
from constrained.patterns.tree import Node

_MAX_STATES = 400
_MAX_STATE_SIZE = 2_000
_MAX_LISTED_LENGTH = 64
_MANY = 1_000_000


def derive(node: Node, code: int) -> Node:
    """Brzozowski's derivative: what may follow character ``code``."""
    if isinstance(node, tree.Chars):
        return tree.EPSILON if charset.contains(node.chars, code) else tree.NOTHING
    if isinstance(node, tree.Concat):
        options = []
        for index, part in enumerate(node.parts):
            options.append(tree.concat([derive(part, code), *node.parts[index + 1 :]]))
            if not nullable(part):
                break
        return tree.either(options)
    if isinstance(node, tree.Either):
        return tree.either(derive(part, code) for part in node.parts)
    if isinstance(node, tree.Both):
        return tree.both(derive(part, code) for part in node.parts)
    if isinstance(node, tree.Complement):
        return tree.complement(derive(node.part, code))
    if isinstance(node, tree.Repeat):
        high = None if node.high is None else node.high - 1
        return tree.concat([derive(node.part, code), tree.repeat(node.part, max(node.low - 1, 0), high)])
    return tree.NOTHING


def nullable(node: Node) -> bool:
    """Whether the empty string is in the language."""
    if isinstance(node, tree.Epsilon):
        return True
    if isinstance(node, tree.Concat | tree.Both):
        return all(map(nullable, node.parts))
    if isinstance(node, tree.Either):
        return any(map(nullable, node.parts))
    if isinstance(node, tree.Complement):
        return not nullable(node.part)
    if isinstance(node, tree.Repeat):
        return node.low == 0 or nullable(node.part)
    return False


@lru_cache(maxsize=1024)
def is_empty(node: Node, max_states: int = _MAX_STATES) -> bool | None:
    """Whether the language holds no string; ``None`` when the automaton would be too large to say."""
    if not tree.has_set_operators(node):
        return _plain_is_empty(node)
    seen = {node}
    queue = deque([node])
    while queue:
        state = queue.popleft()
        if nullable(state):
            return False
        for code in _representatives(state):
            after = derive(state, code)
            if after == tree.NOTHING or after in seen:
                continue
            if len(seen) >= max_states or _size(after) > _MAX_STATE_SIZE:
                return None
            seen.add(after)
            queue.append(after)
    return True


def _plain_is_empty(node: Node) -> bool:
    if isinstance(node, tree.Chars):
        return not node.chars
    if isinstance(node, tree.Concat):
        return any(map(_plain_is_empty, node.parts))
    if isinstance(node, tree.Either):
        return all(map(_plain_is_empty, node.parts))
    if isinstance(node, tree.Repeat):
        return node.low > 0 and _plain_is_empty(node.part)
    return False


def matches(node: Node, text: str) -> bool:
    """Whether ``text`` is in the language."""
    return _machine(node).accepts(text)


@lru_cache(maxsize=256)
def _machine(node: Node) -> _LazyMachine:
    return _LazyMachine(node)


class _LazyMachine:
    """An automaton that grows with the texts it is asked about: time is linear in a text, whatever the pattern."""

    def __init__(self, node: Node) -> None:
        self._states = [node]
        self._numbers = {node: 0, tree.NOTHING: -1}
        self._steps: dict[tuple[int, str], int] = {}

    def accepts(self, text: str) -> bool:
        state = 0
        for char in text:
            following = self._steps.get((state, char))
            if following is None:
                following = self._steps[(state, char)] = self._step(state, char)
            if following < 0:
                return False
            state = following
        return nullable(self._states[state])

    def _step(self, state: int, char: str) -> int:
        after = derive(self._states[state], ord(char))
        number = self._numbers.get(after)
        if number is None:
            number = self._numbers[after] = len(self._states)
            self._states.append(after)
        return number


def finite_strings(node: Node, most: int) -> list[str] | None:
    """Every string of the language, shortest first; ``None`` when there are more than ``most`` or it is unclear."""
    if tree.has_set_operators(node):
        if not isinstance(node, tree.Both):
            return None
        for index, part in enumerate(node.parts):
            listed = finite_strings(part, most)
            if listed is not None:
                others = node.parts[:index] + node.parts[index + 1 :]
                return [one for one in listed if all(matches(other, one) for other in others)]
        return None
    if _count_bound(node) > most:
        return None
    return sorted(set(_enumerate(node)), key=lambda text: (len(text), text))


def _count_bound(node: Node) -> int:
    """At least the number of strings of a plain tree, cut off where it is large."""
    if isinstance(node, tree.Chars):
        return sum(high - low + 1 for low, high in node.chars)
    if isinstance(node, tree.Concat):
        count = 1
        for part in node.parts:
            count = min(count * _count_bound(part), _MANY)
        return count
    if isinstance(node, tree.Either):
        return min(sum(map(_count_bound, node.parts)), _MANY)
    if isinstance(node, tree.Repeat):
        if node.high is None or node.high > _MAX_LISTED_LENGTH:
            return _MANY
        inner = _count_bound(node.part)
        return min(sum(min(int(inner**times), _MANY) for times in range(node.low, node.high + 1)), _MANY)
    return 1


def _enumerate(node: Node) -> list[str]:
    if isinstance(node, tree.Chars):
        return [chr(code) for low, high in node.chars for code in range(low, high + 1)]
    if isinstance(node, tree.Concat):
        texts = [""]
        for part in node.parts:
            endings = _enumerate(part)
            texts = [text + ending for text in texts for ending in endings]
        return texts
    if isinstance(node, tree.Either):
        return [text for part in node.parts for text in _enumerate(part)]
    if isinstance(node, tree.Repeat):
        inner = _enumerate(node.part)
        return [
            "".join(chosen)
            for times in range(node.low, (node.high or 0) + 1)
            for chosen in product(inner, repeat=times)
        ]
    return [""]


def _size(node: Node) -> int:
    return 1 + sum(_size(child) for child in tree.children(node))


def _first_chars(node: Node) -> Iterator[charset.CharSet]:
    if isinstance(node, tree.Chars):
        yield node.chars
    elif isinstance(node, tree.Concat):
        for part in node.parts:
            yield from _first_chars(part)
            if not nullable(part):
                break
    else:
        for child in tree.children(node):
            yield from _first_chars(child)


def first_intervals(node: Node) -> list[tuple[int, int]]:
    """Intervals of characters between which the derivative does not change."""
    cuts = {0, 0xD800, 0xE000, charset.LAST + 1}
    for chars in set(_first_chars(node)):
        for low, high in chars:
            cuts |= {low, high + 1}
    ordered = sorted(cuts)
    return [(a, b - 1) for a, b in pairwise(ordered) if not 0xD800 <= a < 0xE000]


def _representatives(node: Node) -> list[int]:
    """One character of each class that the derivative tells apart."""
    sets = list(set(_first_chars(node)))
    chosen: dict[tuple[bool, ...], int] = {}
    for low, _ in first_intervals(node):
        chosen.setdefault(tuple(charset.contains(one, low) for one in sets), low)
    return list(chosen.values())

"""Brzozowski derivatives, and the questions a deterministic automaton answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from constrained.schema.pattern import charset, tree
from constrained.schema.pattern.tree import Node

_MAX_STATES = 400
_MAX_STATE_SIZE = 2_000


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
    for char in text:
        node = derive(node, ord(char))
        if node == tree.NOTHING:
            return False
    return nullable(node)


def finite_strings(node: Node, most: int) -> list[str] | None:
    """Every string of the language, shortest first; ``None`` when there are more than ``most`` or it is unclear."""
    found: list[str] = []
    queue: deque[tuple[Node, str]] = deque([(node, "")])
    steps = 0
    while queue:
        state, prefix = queue.popleft()
        steps += 1
        if steps > 16 * most or len(prefix) > 256:
            return None
        if nullable(state):
            found.append(prefix)
            if len(found) > most:
                return None
        for low, high in _first_intervals(state):
            if high - low >= most:
                if is_empty(derive(state, low)) is not True:
                    return None
                continue
            for code in range(low, high + 1):
                after = derive(state, code)
                if after != tree.NOTHING:
                    queue.append((after, prefix + chr(code)))
    return found


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


def _first_intervals(node: Node) -> list[tuple[int, int]]:
    """Intervals of characters between which the derivative does not change."""
    cuts = {0, 0xD800, 0xE000, charset.LAST + 1}
    for chars in set(_first_chars(node)):
        for low, high in chars:
            cuts |= {low, high + 1}
    ordered = sorted(cuts)
    return [(a, b - 1) for a, b in zip(ordered, ordered[1:], strict=False) if not 0xD800 <= a < 0xE000]


def _representatives(node: Node) -> list[int]:
    """One character of each class that the derivative tells apart."""
    sets = list(set(_first_chars(node)))
    chosen: dict[tuple[bool, ...], int] = {}
    for low, _ in _first_intervals(node):
        chosen.setdefault(tuple(charset.contains(one, low) for one in sets), low)
    return list(chosen.values())

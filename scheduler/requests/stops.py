"""Stop strings, matched over token bytes.

Text is judged byte by byte, so that the way it was cut into tokens does not matter: the match that is complete first
wins, and of several that are complete at the same byte the longest. One Aho-Corasick automaton serves all stop
strings of a request; a choice's state in it is one number.
(A. Aho, M. Corasick, "Efficient string matching", CACM 18(6), 1975.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class StopMatch:
    stop: bytes
    end: int
    """Offset in the output, in bytes, just behind the match."""

    @property
    def start(self) -> int:
        return self.end - len(self.stop)


class StopAutomaton:
    """Immutable once built; shared by the choices of a request."""

    def __init__(self, stops: Sequence[bytes]) -> None:
        children: list[dict[int, int]] = [{}]
        longest: list[bytes] = [b""]
        depth = [0]
        for stop in stops:
            node = 0
            for byte in stop:
                child = children[node].get(byte)
                if child is None:
                    child = len(children)
                    children[node][byte] = child
                    children.append({})
                    longest.append(b"")
                    depth.append(depth[node] + 1)
                node = child
            longest[node] = stop
        fallback = [0] * len(children)
        held = [d if edges else 0 for d, edges in zip(depth, children, strict=True)]
        queue = deque(children[0].values())
        while queue:
            node = queue.popleft()
            # Shallower nodes are finished: a fallback's own longest match and held length are known here.
            longest[node] = longest[node] or longest[fallback[node]]
            held[node] = held[node] or held[fallback[node]]
            for byte, child in children[node].items():
                below = fallback[node]
                while below and byte not in children[below]:
                    below = fallback[below]
                fallback[child] = children[below].get(byte, 0)
                queue.append(child)
        self._children = children
        self._fallback = fallback
        self._longest = longest
        self._held = held

    def advance(self, state: int, data: bytes) -> tuple[int, int, bytes]:
        """Feed ``data``: the state behind it, and the first match in it as (bytes of ``data`` used, stop string).

        The stop string is empty when nothing matched. The state is that behind all of ``data`` either way.
        """
        children, fallback, longest = self._children, self._fallback, self._longest
        used, match = 0, b""
        for i, byte in enumerate(data):
            while state and byte not in children[state]:
                state = fallback[state]
            state = children[state].get(byte, 0)
            if not match and longest[state]:
                used, match = i + 1, longest[state]
        return state, used, match

    def held_bytes(self, state: int) -> int:
        """Length of the longest end of the text that is a proper beginning of a stop string."""
        return self._held[state]


@lru_cache(maxsize=64)
def stop_automaton(stops: tuple[bytes, ...]) -> StopAutomaton:
    """The automaton for non-empty stop strings; requests of one client mostly bring the same ones."""
    return StopAutomaton(stops)


class StopState:
    """How far one choice's output text is, and what of it may belong to a stop string."""

    def __init__(self, stops: tuple[bytes, ...]) -> None:
        self.num_bytes = 0
        self._automaton = stop_automaton(stops) if stops else None
        self._state = 0
        self._history: list[tuple[int, int]] = []

    @property
    def held_bytes(self) -> int:
        return self._automaton.held_bytes(self._state) if self._automaton is not None else 0

    @property
    def has_stops(self) -> bool:
        return self._automaton is not None

    def forget(self) -> None:
        """What came so far is no beginning of a stop string."""
        self._state = 0

    def push(self, token_bytes: bytes) -> StopMatch | None:
        """Add one token's visible bytes; the first stop string that they complete, if any."""
        begin = self.num_bytes
        self._history.append((self._state, begin))
        self.num_bytes += len(token_bytes)
        if self._automaton is None or not token_bytes:
            return None
        self._state, used, stop = self._automaton.advance(self._state, token_bytes)
        return StopMatch(stop, begin + used) if stop else None

    def rollback(self, num_tokens: int) -> None:
        """Take the last ``num_tokens`` pushes back."""
        if num_tokens > len(self._history):
            raise ValueError(f"{num_tokens} tokens were taken back of {len(self._history)}")
        if num_tokens:
            self._state, self.num_bytes = self._history[-num_tokens]
            del self._history[-num_tokens:]

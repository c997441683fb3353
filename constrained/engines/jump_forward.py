"""The compressed finite-state machine: runs of states that have a single way out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

LONGEST_RUN = 256
"""Bytes; more than any draft holds. A pattern may force a million."""

ByteTransitions = Mapping[int, Mapping[int, int]]
"""Next state by state and byte."""

_decoder = msgspec.msgpack.Decoder(tuple[dict[int, dict[int, int]], list[int]])


class JumpForwardMap:
    """What a byte automaton forces in each state.

    Works over bytes, so that a forced run may begin or end inside a UTF-8 character; whoever shows text cuts it at
    character boundaries. From "Fast JSON Decoding for Local LLMs with Compressed Finite State Machine" (LMSYS, 2024).

    Parameters
    ----------
    transitions
        Next state by state and byte.
    final_states
        States where the text may end; nothing is forced there.
    """

    def __init__(self, transitions: ByteTransitions, final_states: Collection[int]) -> None:
        self._transitions = transitions
        self._final_states = frozenset(final_states)
        self._runs: dict[int, tuple[bytes, int]] = {}

    def pack(self) -> bytes:
        """The automaton in msgpack, for :meth:`unpack`; runs are found again as they are asked for."""
        return msgspec.msgpack.encode((self._transitions, sorted(self._final_states)))

    @classmethod
    def unpack(cls, data: bytes) -> JumpForwardMap:
        """Undo :meth:`pack`. Raises :class:`msgspec.DecodeError`."""
        transitions, final_states = _decoder.decode(data)
        return cls(transitions, final_states)

    def forced(self, state: int) -> bytes:
        """The bytes that every text through ``state`` has next; empty where there is a choice or the text may end."""
        return self._run(state)[0]

    def jump_forward(self, state: int) -> tuple[bytes, int]:
        """:meth:`forced` and the state it leads to: one edge of the compressed automaton."""
        return self._run(state)

    def valid_states(self) -> list[int]:
        """States in which something is forced, in ascending order."""
        return sorted(state for state in self._transitions if self.forced(state))

    def advance(self, state: int, data: bytes) -> int | None:
        """The state after ``data``, or ``None`` where it does not fit."""
        for byte in data:
            following = self._transitions.get(state, {}).get(byte)
            if following is None:
                return None
            state = following
        return state

    def _run(self, state: int) -> tuple[bytes, int]:
        """The forced bytes, :data:`LONGEST_RUN` at most, and the state they lead to."""
        known = self._runs.get(state)
        if known is not None:
            return known
        run = bytearray()
        seen = set()
        here = state
        while here not in self._final_states and here not in seen and len(run) < LONGEST_RUN:
            seen.add(here)
            edges = self._transitions.get(here, {})
            if len(edges) != 1:
                break
            ((byte, here),) = edges.items()
            run.append(byte)
        return self._runs.setdefault(state, (bytes(run), here))

"""outlines-core: regular expressions, and JSON Schema by way of one, as an index of the vocabulary by state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import outlines_core  # type: ignore[import-untyped]
from cachetools import LRUCache
from outlines_core import json_schema
from typing_extensions import Self

from constrained.config import MAX_WHITESPACE_CHARACTERS, JsonWhitespace
from constrained.engines.base import BaseGrammarBackend, BaseGrammarObject, refuse, register_grammar_backend
from constrained.engines.jump_forward import JumpForwardMap
from constrained.environment import GrammarEnvironment, ids_to_words
from constrained.errors import GrammarError, InvalidGrammarError

_JSON_WHITESPACE: dict[JsonWhitespace, str] = {
    "compact": "",
    "bounded": rf"[ \t\r\n]{{0,{MAX_WHITESPACE_CHARACTERS}}}",
    "any": r"[ \t\r\n]*",
}

# Every expression is compiled with this byte behind it, and no token that holds it is in the vocabulary: a state is
# accepting where the byte leads to a final state. Compiled as they are, expressions lose texts: outlines-core 0.2.14
# drops every step from a final state to one that is not (of "(ab)*" only the empty text is left).
_END = b"\0"
_END_PATTERN = r"\x00"
_STATES_KEPT = 512


class _Payload(msgspec.Struct, frozen=True):
    """What crosses between processes and is kept on disk."""

    index: bytes
    jump_forward: bytes
    initial_byte_state: int


_decode_payload = msgspec.msgpack.Decoder(_Payload).decode


@dataclass(frozen=True)
class _State:
    """What a state of the token index allows. words: [ceil(V / 32)] int32, read-only"""

    words: npt.NDArray[np.int32]
    is_accepting: bool
    can_extend: bool


class OutlinesGrammar:
    """The automata of one expression, shared by every state in it.

    Parameters
    ----------
    index
        Moves by tokens.
    jump_forward, initial_byte_state
        The automaton that moves by bytes, of the same expression.
    vocab_size
        Width of the masks.
    """

    def __init__(
        self, index: outlines_core.Index, jump_forward: JumpForwardMap, initial_byte_state: int, vocab_size: int
    ) -> None:
        self.index = index
        self.jump_forward = jump_forward
        self.initial_state: int = index.get_initial_state()
        self.initial_byte_state = initial_byte_state
        self._final_states = frozenset(index.get_final_states())
        self._vocab_size = vocab_size
        self._states: LRUCache[int, _State] = LRUCache(maxsize=_STATES_KEPT)

    def state(self, number: int) -> _State:
        state = self._states.get(number)
        if state is None:
            ids = [i for i in self.index.get_allowed_tokens(number) or [] if i < self._vocab_size]
            behind = self.index.get_next_state(number, self._vocab_size)
            words = ids_to_words(ids, (self._vocab_size + 31) // 32)
            state = self._states[number] = _State(words, behind in self._final_states, bool(ids))
        return state

    @cached_property
    def payload(self) -> bytes:
        return msgspec.msgpack.encode(
            _Payload(self.index.__reduce__()[1][0], self.jump_forward.pack(), self.initial_byte_state)
        )


class OutlinesObject(BaseGrammarObject):
    """A history of states: roll-back is cutting it."""

    def __init__(self, environment: GrammarEnvironment, grammar: OutlinesGrammar) -> None:
        super().__init__(environment)
        self.grammar = grammar
        self._states = [(grammar.initial_state, grammar.initial_byte_state)]

    @property
    def size_bytes(self) -> int:
        return 3 * len(self.grammar.payload) + _STATES_KEPT * self.environment.num_mask_words * 4

    def _accept(self, token_id: int) -> bool:
        state, byte_state = self._states[-1]
        following = self.grammar.index.get_next_state(state, token_id)
        if following is None:
            return False
        byte_following = self.grammar.jump_forward.advance(byte_state, self.environment.matchable_bytes[token_id])
        if byte_following is None:
            raise GrammarError("the two automata of a regular expression disagree")
        self._states.append((following, byte_following))
        return True

    def _rollback(self, k: int) -> None:
        del self._states[-k:]

    def _is_accepting(self) -> bool:
        return self.grammar.state(self._states[-1][0]).is_accepting

    def _can_extend(self) -> bool:
        return self.grammar.state(self._states[-1][0]).can_extend

    def _fill(self, words: npt.NDArray[np.int32], row: int) -> None:
        words[row] = self.grammar.state(self._states[-1][0]).words

    def _forced_bytes(self) -> bytes:
        return self.grammar.jump_forward.forced(self._states[-1][1])

    def _copy(self) -> Self:
        return type(self)(self.environment, self.grammar)


class OutlinesBackend(BaseGrammarBackend):
    name = "outlines"

    @cached_property
    def vocabulary(self) -> outlines_core.Vocabulary:
        end_id = self.environment.vocab_size
        ids_by_bytes: dict[bytes, list[int]] = {_END: [end_id]}
        for token_id, token in enumerate(self.environment.matchable_bytes):
            if token and _END not in token:
                ids_by_bytes.setdefault(token, []).append(token_id)
        return outlines_core.Vocabulary(end_id + 1, ids_by_bytes)

    @cached_property
    def byte_vocabulary(self) -> outlines_core.Vocabulary:
        return outlines_core.Vocabulary(256, {bytes([b]): [b] for b in range(256)})

    def warm(self) -> None:
        _ = self.vocabulary
        _ = self.byte_vocabulary

    @property
    def version(self) -> str:
        return f"outlines-{version('outlines_core')}"

    def dispatch_json(self, value: str) -> BaseGrammarObject:
        try:
            pattern = json_schema.build_regex_from_schema(
                value, _JSON_WHITESPACE[self.environment.config.json_whitespace]
            )
        except (ValueError, TypeError) as error:
            raise InvalidGrammarError(f"invalid schema: {error}") from error
        return self.dispatch_regex(pattern)

    def dispatch_regex(self, value: str) -> BaseGrammarObject:
        pattern = f"(?:{value}){_END_PATTERN}"
        try:
            index = outlines_core.Index(pattern, self.vocabulary)
            bytes_index = outlines_core.Index(pattern, self.byte_vocabulary)
        except ValueError as error:
            raise InvalidGrammarError(f"invalid regular expression: {error}") from error
        return self._object(index, _jump_forward_map(bytes_index), bytes_index.get_initial_state())

    def dispatch_ebnf(self, value: str) -> BaseGrammarObject:
        raise refuse(self.name, "EBNF grammars")

    def dispatch_structural_tag(self, value: str) -> BaseGrammarObject:
        raise refuse(self.name, "structural tags")

    def serialize(self, compiled: BaseGrammarObject) -> bytes:
        if not isinstance(compiled, OutlinesObject):
            raise TypeError(f"not a grammar of this backend: {type(compiled).__name__}")
        return compiled.grammar.payload

    def deserialize(self, payload: bytes) -> BaseGrammarObject:
        try:
            packed = _decode_payload(payload)
            index = outlines_core.Index.from_binary(packed.index)
            return self._object(index, JumpForwardMap.unpack(packed.jump_forward), packed.initial_byte_state)
        except (ValueError, msgspec.DecodeError) as error:
            raise GrammarError(f"a compiled grammar cannot be read back: {error}") from error

    def _object(self, index: Any, jump_forward: JumpForwardMap, initial_byte_state: int) -> BaseGrammarObject:
        grammar = OutlinesGrammar(index, jump_forward, initial_byte_state, self.environment.vocab_size)
        return OutlinesObject(self.environment, grammar)


def _jump_forward_map(bytes_index: Any) -> JumpForwardMap:
    """Of an index over 256 one-byte tokens, whose states the end byte and outlines-core's own end token leave."""
    edges: dict[int, dict[int, int]] = bytes_index.get_transitions()
    finals = set(bytes_index.get_final_states())
    return JumpForwardMap(
        {state: {b: t for b, t in out.items() if b not in (_END[0], 256)} for state, out in edges.items()},
        [state for state, out in edges.items() if out.get(_END[0]) in finals],
    )


register_grammar_backend(OutlinesBackend.name, OutlinesBackend)

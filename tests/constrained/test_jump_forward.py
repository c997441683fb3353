"""The compressed automaton: runs of states with a single way out."""

from __future__ import annotations

import itertools
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.jump_forward import LONGEST_RUN, JumpForwardMap
from constrained.environment import GrammarEnvironment
from constrained.errors import GrammarError


def test_a_run_ends_at_a_choice_and_at_a_final_state() -> None:
    edges = {0: {97: 1}, 1: {98: 2}, 2: {99: 3, 100: 4}, 3: {101: 5}, 4: {}, 5: {102: 6}, 6: {}}
    forward = JumpForwardMap(edges, [4, 5, 6])
    assert forward.forced(0) == b"ab"
    assert forward.forced(1) == b"b"
    assert forward.forced(2) == b""
    assert forward.forced(3) == b"e"
    assert forward.forced(5) == b""


def test_a_circle_of_forced_states_ends() -> None:
    forward = JumpForwardMap({0: {97: 1}, 1: {98: 0}}, [])
    assert forward.forced(0) in (b"ab", b"a")
    assert len(forward.forced(1)) <= 2


def test_a_jump_leads_where_its_bytes_lead() -> None:
    edges = {0: {97: 1}, 1: {98: 2}, 2: {99: 3, 100: 4}, 3: {101: 5}, 4: {}, 5: {102: 6}, 6: {}}
    forward = JumpForwardMap(edges, [4, 5, 6])
    assert forward.valid_states() == [0, 1, 3]
    assert forward.jump_forward(0) == (b"ab", 2)
    assert forward.jump_forward(2) == (b"", 2)
    for state in edges:
        data, behind = forward.jump_forward(state)
        assert forward.advance(state, data) == behind
    assert forward.jump_forward(99) == (b"", 99), "a state that is not there forces nothing"


def test_a_final_state_on_a_circle_is_not_jumped_over() -> None:
    forward = JumpForwardMap({0: {97: 1}, 1: {98: 0}}, [0])
    assert forward.jump_forward(0) == (b"", 0)
    assert forward.jump_forward(1) == (b"b", 0)


def test_a_long_run_is_cut_and_goes_on_from_there() -> None:
    length = 3 * LONGEST_RUN + 5
    forward = JumpForwardMap({state: {97: state + 1} for state in range(length)}, [length])
    state, total = 0, b""
    for _ in range(4):
        data, state = forward.jump_forward(state)
        assert len(data) <= LONGEST_RUN
        total += data
    assert (total, state) == (b"a" * length, length)


def test_advancing_follows_bytes_and_tells_what_does_not_fit() -> None:
    forward = JumpForwardMap({0: {0xC3: 1}, 1: {0xA9: 2, 0xA8: 3}, 2: {}, 3: {}}, [2, 3])
    assert forward.forced(0) == b"\xc3"
    assert forward.advance(0, "é".encode()) == 2
    assert forward.advance(0, b"x") is None


@given(words=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=5, unique=True))
def test_what_is_forced_is_the_longest_common_continuation(words: list[str]) -> None:
    prefixes = sorted({word[:n] for word in words for n in range(len(word) + 1)})
    number = {prefix: index for index, prefix in enumerate(prefixes)}
    edges: dict[int, dict[int, int]] = {index: {} for index in number.values()}
    for prefix in prefixes:
        for char in "ab":
            if prefix + char in number:
                edges[number[prefix]][ord(char)] = number[prefix + char]
    forward = JumpForwardMap(edges, [number[word] for word in words])
    for prefix in prefixes:
        rest = [word[len(prefix) :] for word in words if word.startswith(prefix)]
        common = "".join(
            chars[0] for chars in itertools.takewhile(lambda c: len(set(c)) == 1, itertools.zip_longest(*rest))
        )
        assert forward.forced(number[prefix]) == common.encode(), (prefix, words)
        assert re.fullmatch("[ab]*", common)


def test_a_packed_map_forces_the_same() -> None:
    edges = {0: {97: 1}, 1: {98: 2}, 2: {99: 3, 100: 4}, 3: {101: 5}, 4: {}, 5: {102: 6}, 6: {}}
    forward = JumpForwardMap(edges, [4, 5, 6])
    again = JumpForwardMap.unpack(forward.pack())
    assert again.valid_states() == [0, 1, 3]
    assert [again.jump_forward(state) for state in edges] == [forward.jump_forward(state) for state in edges]
    with pytest.raises(msgspec.DecodeError):
        JumpForwardMap.unpack(forward.pack()[:-2])


def test_a_compiled_expression_brings_its_map_along(environment: GrammarEnvironment) -> None:
    worker = AutoGrammarBackend(environment).backend("outlines")
    compiled = worker.dispatch_regex("(ab|x)cdé[0-9]")
    reader = AutoGrammarBackend(environment).backend("outlines")
    grammar = reader.deserialize(worker.serialize(compiled)).copy()
    assert "byte_vocabulary" not in vars(reader), "no automaton is built again"
    grammar.accept_token(ord("x"))
    assert grammar.forced_bytes() == "cdé".encode()
    for damaged in (b"", b"garbage", worker.serialize(compiled)[:-40]):
        with pytest.raises(GrammarError, match="cannot be read back"):
            reader.deserialize(damaged)

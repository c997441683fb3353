"""Stop strings over bytes, against a search by brute force."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.requests.stops import StopAutomaton, StopMatch, StopState

STOPS = st.lists(st.text("ab", min_size=1, max_size=5).map(str.encode), min_size=1, max_size=6).map(tuple)
TOKENS = st.lists(st.text("abc", max_size=4).map(str.encode), max_size=12)


def first_match(text: bytes, stops: tuple[bytes, ...]) -> StopMatch | None:
    """The match that is complete first; of several, the longest."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return StopMatch(max(complete, key=len), end)
    return None


def held(text: bytes, stops: tuple[bytes, ...]) -> int:
    return max(k for k in range(len(text) + 1) for stop in stops if k < len(stop) and text.endswith(stop[:k]))


@settings(max_examples=300, deadline=None)
@given(STOPS, TOKENS)
def test_the_match_and_the_held_bytes_are_those_of_a_search(stops: tuple[bytes, ...], tokens: list[bytes]) -> None:
    state = StopState(stops)
    text = b""
    for token in tokens:
        match = state.push(token)
        text += token
        assert match == first_match(text, stops)
        if match is not None:
            assert text[match.start : match.end] == match.stop
            return
        assert state.held_bytes == held(text, stops)
        assert state.num_bytes == len(text)


@settings(max_examples=300, deadline=None)
@given(STOPS, TOKENS, TOKENS, st.data())
def test_rollback_undoes_pushes_exactly(
    stops: tuple[bytes, ...], tokens: list[bytes], others: list[bytes], data: st.DataObject
) -> None:
    state, kept = StopState(stops), StopState(stops)
    count = data.draw(st.integers(0, len(tokens)))
    for token in tokens:
        state.push(token)
    for token in tokens[: len(tokens) - count]:
        kept.push(token)
    state.rollback(count)
    for token in others:
        assert (state.num_bytes, state.held_bytes) == (kept.num_bytes, kept.held_bytes)
        assert state.push(token) == kept.push(token)


@settings(max_examples=200, deadline=None)
@given(STOPS, st.text("abc", max_size=20).map(str.encode), st.data())
def test_the_cut_does_not_depend_on_the_tokens(stops: tuple[bytes, ...], text: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    state = StopState(stops)
    match = None
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        match = match or state.push(text[begin:end])
    assert match == first_match(text, stops)


def test_a_match_that_was_not_heeded_does_not_hide_later_ones() -> None:
    state = StopState((b"ab", b"abc"))
    assert state.push(b"ab") == StopMatch(b"ab", 2)
    assert state.held_bytes == 2
    assert state.push(b"c") == StopMatch(b"abc", 3)
    assert state.push(b"ab") == StopMatch(b"ab", 5)


def test_more_tokens_than_there_are_cannot_be_taken_back() -> None:
    state = StopState((b"a",))
    state.push(b"b")
    with pytest.raises(ValueError, match="2 tokens"):
        state.rollback(2)


def test_a_thousand_stop_strings_cost_little_per_token() -> None:
    rng = random.Random(0)
    stops = tuple(bytes(rng.choices(b"abcdef", k=20)) for _ in range(1000))
    begin = time.process_time()
    automaton = StopAutomaton(stops)
    built = time.process_time() - begin
    text = bytes(rng.choices(b"abcdef", k=5)) * 2000
    begin = time.process_time()
    automaton.advance(0, text)
    # 2000 tokens of 5 bytes; generous for a slow machine, but far below a search of 1,000 strings per token.
    assert time.process_time() - begin < 0.5
    assert built < 1.0

"""What every engine's objects have in common."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from constrained.compile import walk as walk_module
from constrained.compile.walk import legal_token_ids, walk
from constrained.engines.base import BaseGrammarObject
from constrained.environment import GrammarEnvironment
from constrained.errors import GrammarError, GrammarTooSlowError, TokenRejectedError

Compile = Callable[..., BaseGrammarObject]
EOS, OTHER_STOP, THINK_END = 256, 257, 258

ENGINES = ["xgrammar", "llguidance", "outlines"]
FORMS = [
    ("regex", "(ab|abc)*x?"),
    ("regex", "[ab]{2,4}é"),
    (
        "json_schema",
        '{"type":"object","properties":{"a":{"enum":[1,12,true]}},"required":["a"],"additionalProperties":false}',
    ),
    ("json_schema", '{"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":2}'),
]

every_engine = pytest.mark.parametrize("engine", ENGINES)
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form[1][:20])


def feed(grammar: BaseGrammarObject, text: bytes) -> None:
    for byte in text:
        grammar.accept_token(byte)


def mask_of(grammar: BaseGrammarObject) -> np.ndarray:
    mask = grammar.allocate_vocab_mask(grammar.environment.vocab_size, 1)
    grammar.fill_vocab_mask(mask, 0)
    return mask.numpy()[0].copy()


@every_engine
@every_form
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_rollback_undoes_accept(compile_here: Compile, engine: str, form: tuple[str, str], data: st.DataObject) -> None:
    grammar = compile_here(*form, engine)
    masks = [mask_of(grammar)]
    for _ in range(data.draw(st.integers(1, 12))):
        if grammar.is_terminated() and grammar.is_stopped:
            break
        legal = legal_token_ids(grammar)
        if not len(legal):
            break
        grammar.accept_token(int(legal[data.draw(st.integers(0, len(legal) - 1))]))
        masks.append(mask_of(grammar))
    while len(masks) > 1:
        k = data.draw(st.integers(1, len(masks) - 1))
        grammar.rollback(k)
        del masks[-k:]
        np.testing.assert_array_equal(mask_of(grammar), masks[-1])


@every_engine
@every_form
def test_a_copy_starts_anew_and_shares_no_state(compile_here: Compile, engine: str, form: tuple[str, str]) -> None:
    grammar = compile_here(*form, engine)
    start = mask_of(grammar)
    grammar.accept_token(int(legal_token_ids(grammar)[0]))
    moved = mask_of(grammar)
    copy = grammar.copy()
    np.testing.assert_array_equal(mask_of(copy), start)
    copy.accept_token(int(legal_token_ids(copy)[-1]))
    np.testing.assert_array_equal(mask_of(grammar), moved)


@every_engine
@every_form
def test_masks_allow_no_special_token_and_nothing_beyond_the_vocabulary(
    compile_here: Compile, environment: GrammarEnvironment, engine: str, form: tuple[str, str]
) -> None:
    grammar = compile_here(*form, engine)
    for _ in range(6):
        legal = set(legal_token_ids(grammar).tolist())
        assert max(legal, default=0) < environment.vocab_size
        allowed_specials = legal & environment.unmatchable_ids
        assert allowed_specials == ({EOS} if grammar.is_accepting() else set())
        texts = sorted(legal - {EOS})
        if not texts:
            break
        grammar.accept_token(texts[len(texts) // 2])


@every_engine
def test_a_refused_token_leaves_the_state_as_it_was(compile_here: Compile, engine: str) -> None:
    grammar = compile_here("regex", "abc", engine)
    feed(grammar, b"a")
    before = mask_of(grammar)
    for wrong in (ord("x"), EOS, OTHER_STOP, THINK_END, 259, 300, 348):
        with pytest.raises(TokenRejectedError):
            grammar.accept_token(wrong)
        np.testing.assert_array_equal(mask_of(grammar), before)
    feed(grammar, b"bc")
    assert grammar.is_terminated()


@every_engine
def test_a_complete_answer_that_nothing_extends_is_terminated_without_a_stop_token(
    compile_here: Compile, engine: str
) -> None:
    grammar = compile_here("json_schema", '{"type":"boolean"}', engine)
    feed(grammar, b"tru")
    assert not grammar.is_terminated()
    feed(grammar, b"e")
    assert grammar.is_terminated()
    grammar.rollback(1)
    assert not grammar.is_terminated()


@every_engine
def test_an_answer_that_may_go_on_ends_only_with_a_stop_token(compile_here: Compile, engine: str) -> None:
    grammar = compile_here("regex", "a+", engine)
    feed(grammar, b"aa")
    assert grammar.is_accepting()
    assert not grammar.is_terminated()
    grammar.accept_token(EOS)
    assert grammar.is_terminated()
    with pytest.raises(TokenRejectedError):
        grammar.accept_token(ord("a"))
    grammar.rollback(2)
    assert not grammar.is_terminated()
    feed(grammar, b"aaa")


@every_engine
def test_only_the_requests_own_stop_set_is_legal_at_completion(compile_here: Compile, engine: str) -> None:
    grammar = compile_here("regex", "ab", engine)
    grammar.set_stop_token_ids([OTHER_STOP, ord("!")])
    assert legal_token_ids(grammar).tolist() == [ord("a"), 259]
    feed(grammar, b"ab")
    assert legal_token_ids(grammar).tolist() == [ord("!"), OTHER_STOP]
    with pytest.raises(TokenRejectedError):
        grammar.accept_token(EOS)
    grammar.accept_token(ord("!"))
    assert grammar.is_terminated()


@every_engine
def test_a_stop_token_made_of_text_cannot_end_the_answer_inside_the_form(compile_here: Compile, engine: str) -> None:
    grammar = compile_here("regex", "a[.,]b", engine)
    grammar.set_stop_token_ids([EOS, ord(".")])
    feed(grammar, b"a")
    assert legal_token_ids(grammar).tolist() == [ord(",")]
    with pytest.raises(TokenRejectedError):
        grammar.accept_token(ord("."))


@every_engine
def test_copies_keep_the_stop_set(compile_here: Compile, engine: str) -> None:
    grammar = compile_here("regex", "a", engine)
    grammar.set_stop_token_ids([OTHER_STOP])
    copy = grammar.copy()
    feed(copy, b"a")
    assert legal_token_ids(copy).tolist() == [OTHER_STOP]


@every_engine
def test_an_empty_stop_set_is_refused(compile_here: Compile, engine: str) -> None:
    with pytest.raises(GrammarError):
        compile_here("regex", "a", engine).set_stop_token_ids([])


@every_engine
def test_rolling_back_further_than_the_start_is_refused(compile_here: Compile, engine: str) -> None:
    grammar = compile_here("regex", "abc", engine)
    feed(grammar, b"ab")
    with pytest.raises(ValueError, match="cannot roll back 3 of 2"):
        grammar.rollback(3)
    grammar.rollback(0)
    feed(grammar, b"c")


@every_engine
def test_forced_text_is_known_and_ends_where_there_is_a_choice(compile_here: Compile, engine: str) -> None:
    grammar = compile_here("regex", "abc(x|y)", engine)
    assert grammar.forced_bytes() == b"abc"
    feed(grammar, b"a")
    helper = grammar.try_jump_forward()
    assert helper == ([], b"bc")
    assert grammar.jump_forward_str_state(helper) == ("bc", 2)
    feed(grammar, b"bc")
    assert grammar.try_jump_forward() is None


@pytest.mark.parametrize("engine", ["llguidance", "outlines"])
def test_forced_bytes_may_end_inside_a_character(compile_here: Compile, engine: str) -> None:
    grammar = compile_here("regex", "xé|xè", engine)
    helper = grammar.try_jump_forward()
    assert helper == ([], b"x\xc3")
    assert grammar.jump_forward_str_state(helper) == ("x", 1)


@every_engine
def test_inside_a_character_its_rest_and_what_follows_is_forced(compile_here: Compile, engine: str) -> None:
    grammar = compile_here("regex", "x(日本|é)?y", engine)
    for byte in b"x\xe6":
        grammar.accept_token(byte)
    assert grammar.forced_bytes() == "日本y".encode()[1:]
    grammar.accept_token(0x97)
    assert grammar.forced_bytes() == "日本y".encode()[2:]
    grammar.rollback(2)
    assert grammar.forced_bytes() == b""
    feed = "日本y".encode()
    for index, byte in enumerate(feed):
        assert index == 0 or grammar.forced_bytes() == feed[index:]
        grammar.accept_token(byte)
    assert grammar.is_terminated()


@pytest.mark.parametrize("engine", ENGINES)
def test_inside_a_character_with_a_choice_the_common_bytes_are_forced(compile_here: Compile, engine: str) -> None:
    grammar = compile_here("regex", "[日旦]x", engine)  # e6 97 a5, e6 97 a6
    grammar.accept_token(0xE6)
    assert grammar.forced_bytes() == b"\x97"
    grammar.accept_token(0x97)
    assert grammar.forced_bytes() == b""


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_forced_where_the_answer_may_end(compile_here: Compile, engine: str) -> None:
    grammar = compile_here("regex", "a(b)?", engine)
    feed(grammar, b"a")
    assert grammar.forced_bytes() == b""


@every_engine
def test_retokenising_moves_from_one_spelling_to_another(compile_here: Compile, engine: str) -> None:
    grammar = compile_here("regex", "abc[xy]z", engine)
    old = [ord("a"), ord("b")]
    for token_id in old:
        grammar.accept_token(token_id)
    grammar.jump_and_retokenize(old, [ord("a"), 261], -1)
    assert legal_token_ids(grammar).tolist() == [ord("x"), ord("y")]


@every_engine
@every_form
def test_a_grammar_that_was_packed_and_unpacked_has_the_same_masks(
    engines, compile_here: Compile, engine: str, form: tuple[str, str]
) -> None:
    backend = engines.backend(engine)
    original = compile_here(*form, engine)
    unpacked = backend.deserialize(backend.serialize(original)).copy()
    for _ in range(8):
        np.testing.assert_array_equal(mask_of(unpacked), mask_of(original))
        legal = legal_token_ids(original)
        if original.is_stopped or not len(legal):
            break
        original.accept_token(int(legal[-1]))
        unpacked.accept_token(int(legal[-1]))


@every_form
def test_an_xgrammar_result_and_its_text_have_the_same_masks(
    engines, compile_here: Compile, monkeypatch: pytest.MonkeyPatch, form: tuple[str, str]
) -> None:
    """What compiles quickly crosses as text, the rest as xgrammar's own JSON."""
    backend = engines.backend("xgrammar")
    monkeypatch.setattr("constrained.engines.xgrammar_backend._QUICK_SECONDS", float("inf"))
    as_text = backend.serialize(compile_here(*form, "xgrammar"))
    monkeypatch.setattr("constrained.engines.xgrammar_backend._QUICK_SECONDS", 0.0)
    as_result = backend.serialize(compile_here(*form, "xgrammar"))
    assert len(as_text) < len(as_result)
    one, other = backend.deserialize(as_text).copy(), backend.deserialize(as_result).copy()
    for _ in range(8):
        np.testing.assert_array_equal(mask_of(one), mask_of(other))
        legal = legal_token_ids(one)
        if one.is_stopped or not len(legal):
            break
        one.accept_token(int(legal[-1]))
        other.accept_token(int(legal[-1]))


@every_engine
@pytest.mark.parametrize("payload", [b"", b"\x00garbage", b"tgarbage", b"rgarbage"])
def test_nonsense_is_not_unpacked(engines, engine: str, payload: bytes) -> None:
    with pytest.raises(GrammarError):
        engines.backend(engine).deserialize(payload)


@every_engine
@every_form
def test_a_walk_ends_where_it_began(compile_here: Compile, engine: str, form: tuple[str, str]) -> None:
    grammar = compile_here(*form, engine)
    before = mask_of(grammar)
    walk(grammar, 64, seed=3)
    np.testing.assert_array_equal(mask_of(grammar), before)


def test_a_grammar_whose_masks_are_slow_is_refused(compile_here: Compile) -> None:
    grammar = compile_here("regex", "a*", "llguidance")
    walk(grammar, 64, max_mask_seconds=1.0)
    with pytest.raises(GrammarTooSlowError, match="ms a token"):
        walk(grammar, 64, max_mask_seconds=0.0)


def test_a_mask_that_a_busy_machine_held_up_is_measured_again(
    compile_here: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, fill = itertools.cycle([9.0, 0.001, 9.0]), walk_module._fill_seconds
    monkeypatch.setattr(walk_module, "_fill_seconds", lambda *state: (fill(*state), next(seconds))[1])
    walk(compile_here("regex", "[a-z]+", "xgrammar"), 8, max_mask_seconds=1.0)

"""The form begins behind the thinking, and roll-back crosses the boundary exactly."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from constrained.compile.walk import legal_token_ids
from constrained.engines.base import BaseGrammarBackend, BaseGrammarObject, InvalidGrammarObject
from constrained.environment import GrammarEnvironment
from constrained.errors import InvalidGrammarError, TokenRejectedError
from constrained.spec import GrammarSpec, ReasoningSpec
from constrained.thinking.reasoner import ReasonerGrammarObject
from constrained.thinking.reasoner_backend import ReasonerGrammarBackend

EOS, THINK_END = 256, 258
LT_SLASH, THINK, GT, GT_NEWLINE, GT_X = 268, 269, 270, 271, 272

SPECIAL = ReasoningSpec(think_end_ids=(THINK_END,), is_thinking=True)
SPELLED = ReasoningSpec(think_end_ids=(LT_SLASH, THINK, GT), is_thinking=True)


class RecordingGrammar(BaseGrammarObject):
    """Allows everything and remembers what was done to it."""

    def __init__(self, environment: GrammarEnvironment) -> None:
        super().__init__(environment)
        self.accepted: list[int] = []
        self.rolled_back: list[int] = []

    def _accept(self, token_id: int) -> bool:
        self.accepted.append(token_id)
        return True

    def _rollback(self, k: int) -> None:
        self.rolled_back.append(k)
        del self.accepted[-k:]

    def _is_accepting(self) -> bool:
        return False

    def _can_extend(self) -> bool:
        return True

    def _fill(self, words, row: int) -> None:
        words[row] = self.environment.full_words

    def _forced_bytes(self) -> bytes:
        return b"forced"

    def _copy(self) -> RecordingGrammar:
        return type(self)(self.environment)


@pytest.fixture
def inner(environment: GrammarEnvironment) -> RecordingGrammar:
    return RecordingGrammar(environment)


def accept(grammar: BaseGrammarObject, *token_ids: int) -> None:
    for token_id in token_ids:
        grammar.accept_token(token_id)


def mask_of(grammar: BaseGrammarObject) -> np.ndarray:
    mask = grammar.allocate_vocab_mask(grammar.environment.vocab_size, 1)
    grammar.fill_vocab_mask(mask, 0)
    return mask.numpy()[0].copy()


def test_counter_three_rolled_back_by_five_rolls_the_inner_grammar_back_by_three(inner: RecordingGrammar) -> None:
    grammar = ReasonerGrammarObject(inner, SPECIAL)
    accept(grammar, 97, 98, THINK_END, 99, 100, 101)
    assert grammar.tokens_after_think_end == 3
    grammar.rollback(5)
    assert inner.rolled_back == [3]
    assert inner.accepted == []
    assert grammar.tokens_after_think_end == -1


def test_the_marker_never_reaches_the_inner_grammar(inner: RecordingGrammar) -> None:
    grammar = ReasonerGrammarObject(inner, SPECIAL)
    accept(grammar, 97)
    assert grammar.tokens_after_think_end == -1
    accept(grammar, THINK_END)
    assert grammar.tokens_after_think_end == 0
    accept(grammar, 120, 121)
    assert grammar.tokens_after_think_end == 2
    assert inner.accepted == [120, 121]


def test_a_request_that_does_not_think_is_constrained_from_its_first_token(inner: RecordingGrammar) -> None:
    grammar = ReasonerGrammarObject(inner, ReasoningSpec(think_end_ids=(THINK_END,), is_thinking=False))
    accept(grammar, 97)
    assert inner.accepted == [97]
    grammar.rollback(1)
    assert grammar.tokens_after_think_end == 0


def test_maybe_init_reasoning_settles_it_before_the_first_token(inner: RecordingGrammar) -> None:
    grammar = ReasonerGrammarObject(inner, SPECIAL)
    grammar.maybe_init_reasoning(False)
    assert grammar.tokens_after_think_end == 0
    grammar.maybe_init_reasoning(True)
    assert grammar.is_thinking
    accept(grammar, 97)
    with pytest.raises(ValueError, match="before its first token"):
        grammar.maybe_init_reasoning(False)


def test_while_thinking_everything_is_legal_but_the_end_of_the_answer(inner: RecordingGrammar) -> None:
    grammar = ReasonerGrammarObject(inner, SPECIAL)
    grammar.set_stop_token_ids([EOS, 97])
    everything = set(range(grammar.environment.vocab_size))
    assert set(legal_token_ids(grammar).tolist()) == everything - {EOS, 97}
    assert grammar.active_grammar() is grammar
    accept(grammar, THINK_END)
    assert grammar.active_grammar() is inner


@pytest.mark.parametrize(
    "spelling",
    [
        (LT_SLASH, THINK, GT),
        tuple(b"</think>"),
        (ord("<"), ord("/"), THINK, GT),
        (LT_SLASH, *b"thin", ord("k"), GT_NEWLINE),
        (ord("<"), LT_SLASH, THINK, GT),
        (LT_SLASH, *b"th", LT_SLASH, THINK, GT),
    ],
)
def test_a_marker_is_found_however_it_is_spelled(inner: RecordingGrammar, spelling: tuple[int, ...]) -> None:
    grammar = ReasonerGrammarObject(inner, SPELLED)
    accept(grammar, 97, *spelling)
    assert grammar.tokens_after_think_end == 0
    accept(grammar, 98)
    assert inner.accepted == [98]
    grammar.rollback(len(spelling))
    assert grammar.tokens_after_think_end == -1
    assert inner.accepted == []


def test_a_token_that_joins_the_marker_and_the_answer_is_forbidden(inner: RecordingGrammar) -> None:
    grammar = ReasonerGrammarObject(inner, SPELLED)
    accept(grammar, LT_SLASH, THINK)
    legal = set(legal_token_ids(grammar).tolist())
    assert GT_X not in legal
    assert {GT, GT_NEWLINE, ord("a")} <= legal
    with pytest.raises(TokenRejectedError):
        grammar.accept_token(GT_X)
    accept(grammar, GT)
    assert grammar.tokens_after_think_end == 0


def test_an_answer_cannot_end_inside_its_thinking(inner: RecordingGrammar) -> None:
    grammar = ReasonerGrammarObject(inner, SPECIAL)
    accept(grammar, 97)
    with pytest.raises(TokenRejectedError, match="inside its thinking"):
        grammar.accept_token(EOS)
    assert not grammar.is_terminated()


@pytest.mark.parametrize(
    ("reasoning", "marker"), [(SPECIAL, [THINK_END]), (SPELLED, [LT_SLASH, THINK, GT])], ids=["special", "spelled"]
)
def test_a_spent_budget_forces_the_marker(inner: RecordingGrammar, reasoning: ReasoningSpec, marker: list[int]) -> None:
    spec = ReasoningSpec(think_end_ids=reasoning.think_end_ids, is_thinking=True, budget=3)
    grammar = ReasonerGrammarObject(inner, spec)
    for token_id in (97, 98, 99):
        assert len(legal_token_ids(grammar)) > 200
        grammar.accept_token(token_id)
    for token_id in marker:
        assert legal_token_ids(grammar).tolist() == [token_id]
        grammar.accept_token(token_id)
    assert grammar.tokens_after_think_end == 0
    assert inner.accepted == []


def test_a_budget_spent_inside_an_odd_spelling_goes_on_with_it(inner: RecordingGrammar) -> None:
    spec = ReasoningSpec(think_end_ids=SPELLED.think_end_ids, is_thinking=True, budget=2)
    grammar = ReasonerGrammarObject(inner, spec)
    accept(grammar, 97, ord("<"))
    while grammar.is_thinking:
        legal = legal_token_ids(grammar)
        assert len(legal) in (1, 2)
        grammar.accept_token(int(legal[0]))
    assert grammar.num_thinking_tokens < 12


def test_jump_forward_is_delegated_only_after_thinking(inner: RecordingGrammar) -> None:
    grammar = ReasonerGrammarObject(inner, SPECIAL)
    assert grammar.forced_bytes() == b""
    assert grammar.try_jump_forward() is None
    accept(grammar, THINK_END)
    assert grammar.forced_bytes() == b"forced"
    assert grammar.try_jump_forward() == ([], b"forced")


def test_a_copy_thinks_anew_and_keeps_the_stop_set(inner: RecordingGrammar) -> None:
    grammar = ReasonerGrammarObject(inner, SPECIAL)
    grammar.set_stop_token_ids([257])
    accept(grammar, 97, THINK_END, 98)
    copy = grammar.copy()
    assert isinstance(copy, ReasonerGrammarObject)
    assert copy.tokens_after_think_end == -1
    assert copy.stop_token_ids == {257}
    assert copy.grammar.stop_token_ids == {257}
    accept(copy, THINK_END)
    assert grammar.tokens_after_think_end == 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_rollback_undoes_accept_over_the_boundary(
    compile_here: Callable[..., BaseGrammarObject], data: st.DataObject
) -> None:
    grammar = ReasonerGrammarObject(compile_here("regex", "(ab|abc)*", "llguidance"), SPELLED)
    thinking = data.draw(st.lists(st.sampled_from([97, 98, ord("<"), LT_SLASH, THINK]), max_size=5))
    answer = data.draw(st.lists(st.sampled_from([259, 260]), max_size=4))
    states = [(grammar.tokens_after_think_end, mask_of(grammar))]
    for token_id in [*thinking, LT_SLASH, THINK, GT, *answer]:
        grammar.accept_token(token_id)
        states.append((grammar.tokens_after_think_end, mask_of(grammar)))
    assert states[-1][0] == len(answer)
    while len(states) > 1:
        k = data.draw(st.integers(1, len(states) - 1))
        grammar.rollback(k)
        del states[-k:]
        assert grammar.tokens_after_think_end == states[-1][0]
        np.testing.assert_array_equal(mask_of(grammar), states[-1][1])


class _Inner(BaseGrammarBackend):
    """Answers with what it is given."""

    def __init__(self, environment: GrammarEnvironment, value: object) -> None:
        super().__init__(environment)
        self.value = value

    def get_cached_or_future_value(self, key, require_reasoning=None):
        return self.value, not isinstance(self.value, Future)

    def dispatch_json(self, value: str) -> BaseGrammarObject:
        raise NotImplementedError

    dispatch_regex = dispatch_ebnf = dispatch_structural_tag = serialize = deserialize = dispatch_json


KEY = GrammarSpec(kind="regex", value="a")


def test_the_wrapper_wraps_only_requests_that_may_think(
    environment: GrammarEnvironment, inner: RecordingGrammar
) -> None:
    backend = ReasonerGrammarBackend(_Inner(environment, inner))
    assert backend.get_cached_or_future_value(KEY, None) == (inner, True)
    wrapped, _ = backend.get_cached_or_future_value(KEY, SPECIAL)
    assert isinstance(wrapped, ReasonerGrammarObject)
    assert wrapped.grammar is inner


def test_invalid_grammars_pass_through_unwrapped(environment: GrammarEnvironment) -> None:
    invalid = InvalidGrammarObject(environment, InvalidGrammarError("no"))
    assert ReasonerGrammarBackend(_Inner(environment, invalid)).get_cached_or_future_value(KEY, SPECIAL)[0] is invalid
    future: Future[BaseGrammarObject] = Future()
    outer, _ = ReasonerGrammarBackend(_Inner(environment, future)).get_cached_or_future_value(KEY, SPECIAL)
    assert isinstance(outer, Future)
    future.set_result(invalid)
    assert outer.result(1) is invalid


def test_cancelling_a_wrapped_future_cancels_the_compile(environment: GrammarEnvironment) -> None:
    future: Future[BaseGrammarObject] = Future()
    outer, _ = ReasonerGrammarBackend(_Inner(environment, future)).get_cached_or_future_value(KEY, SPECIAL)
    assert isinstance(outer, Future)
    outer.cancel()
    assert future.cancelled()

"""Where thinking ends, and that stop strings leave it alone."""

from __future__ import annotations

import pytest
from scheduler_fakes import CLIENT, TOKEN_BYTES, VOCAB_SIZE, Harness, reference

from constrained.spec import ReasoningSpec
from sampling.params import SamplingParams
from scheduler.messages import GenerateRequest
from scheduler.requests.thinking import ThinkingState

BYTES = [b"a", b"</", b"think", b">", b".</", b"th", b"ink>\n", b"", b"</think>", b" \n"]
MARKER = ReasoningSpec(think_end_ids=(1, 2, 3), is_thinking=True)
SPECIAL = ReasoningSpec(think_end_ids=(7,), is_thinking=True)
PARAMS = SamplingParams(max_tokens=30, seed=0, ignore_eos=True)


def pushed(reasoning, token_ids):
    state = ThinkingState(reasoning, BYTES)
    for token_id in token_ids:
        state.push(token_id, BYTES)
    return state.is_thinking, state.num_tokens


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([0, 1, 2, 3, 0], (False, 4)),
        ([0, 8, 0], (False, 2)),
        ([4, 5, 6, 0], (False, 3)),
        ([1, 1, 2, 3], (False, 4)),
        ([0, 1, 2, 0], (True, 4)),
    ],
)
def test_the_marker_ends_thinking_however_it_is_spelled(token_ids, expected):
    assert pushed(MARKER, token_ids) == expected


def test_a_special_token_may_be_the_marker():
    assert pushed(SPECIAL, [0, 7, 0]) == (False, 2)


def test_who_does_not_think_has_no_thinking_tokens():
    assert pushed(None, [0, 1, 2, 3]) == (False, 0)
    assert pushed(ReasoningSpec(think_end_ids=(1,), is_thinking=False), [0, 1]) == (False, 0)


OPENED = ReasoningSpec(think_start_ids=(1, 2, 3), think_end_ids=(8,), is_thinking=False)


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([1, 2, 3, 0, 0, 8, 0], (False, 6)),
        ([9, 1, 5, 6, 0], (True, 5)),  # behind white space, in other tokens
        ([0, 1, 2, 3, 0], (False, 0)),  # in the answer
        ([4, 5, 6, 0], (False, 0)),
        ([1, 0, 1, 2, 3], (False, 0)),
        ([1, 2, 3, 0, 8, 1, 2, 3, 0], (False, 5)),  # once
        ([1, 2], (False, 0)),
    ],
)
def test_thinking_that_the_model_itself_began_is_counted_with_its_marks(token_ids, expected):
    assert pushed(OPENED, token_ids) == expected


def test_a_model_may_think_again_where_its_format_says_so():
    reasoning = ReasoningSpec(think_start_ids=(7, 2), think_end_ids=(3,), is_thinking=False, may_think_again=True)
    assert pushed(reasoning, [0, 7, 2, 0, 3, 0, 7, 0, 7, 2, 0]) == (True, 4 + 3)


def run(max_in_flight, reasoning, stop=(), n=1, max_tokens=30):
    harness = Harness(max_in_flight)
    params = SamplingParams(max_tokens=max_tokens, seed=0, ignore_eos=True, stop=stop, n=n)
    message = GenerateRequest(request_id="a", prompt_token_ids=[7], sampling=params, reasoning=reasoning, stream=True)
    harness.connection.incoming.append((CLIENT, message))
    harness.run()
    return harness


@pytest.mark.parametrize("max_in_flight", [0, 1])
def test_a_stop_string_ends_an_answer_behind_its_thinking_only(max_in_flight):
    tokens = reference([7], PARAMS)
    end_at = 12
    reasoning = ReasoningSpec(think_end_ids=(tokens[end_at],), is_thinking=True)
    marker = TOKEN_BYTES[tokens[end_at]]
    behind = next(i + 1 for i in range(len(tokens)) if marker in b"".join(TOKEN_BYTES[t] for t in tokens[: i + 1]))
    text = b"".join(TOKEN_BYTES[token] for token in tokens[behind:])
    stop = text[:2]
    begin = sum(len(TOKEN_BYTES[token]) for token in tokens[:behind])
    finish = run(max_in_flight, reasoning, (stop,)).finish("a")
    assert (finish.reason, finish.num_bytes) == ("stop", begin)
    assert finish.usage.reasoning_tokens == behind
    asked = ReasoningSpec(think_end_ids=(VOCAB_SIZE - 2,), is_thinking=True, stops_apply=True)
    everything = b"".join(TOKEN_BYTES[token] for token in tokens)
    finish = run(max_in_flight, asked, (everything[:3],)).finish("a")
    assert finish.num_bytes == 0


def test_choices_think_on_their_own():
    first, second = reference([7], PARAMS), reference([7], PARAMS, choice_index=1)
    reasoning = ReasoningSpec(think_end_ids=(first[5], first[6]), is_thinking=True)
    harness = run(0, reasoning, n=2)
    assert harness.finish("a", 0).usage.reasoning_tokens <= 7
    marker = TOKEN_BYTES[first[5]] + TOKEN_BYTES[first[6]]
    ends = [i + 1 for i in range(30) if marker in b"".join(TOKEN_BYTES[t] for t in second[: i + 1])]
    assert harness.finish("a", 1).usage.reasoning_tokens == (ends[0] if ends else 30)


def test_a_marker_outside_the_vocabulary_is_refused():
    for ids in ((), (VOCAB_SIZE,)):
        harness = run(0, ReasoningSpec(think_end_ids=ids, is_thinking=True))
        assert harness.admitted() == []


def test_a_budget_without_the_grammar_layer_is_refused():
    harness = run(0, ReasoningSpec(think_end_ids=(1,), is_thinking=True, budget=3))
    assert harness.admitted() == []

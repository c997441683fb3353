"""What requests get, on an executor that answers at once and on one that answers one step late."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduler_fakes import (
    CONTEXT,
    EOS,
    PAGE_SIZE,
    TOKEN_BYTES,
    DigitsGrammar,
    FakeGrammarManager,
    Harness,
    RandomDrafter,
    fake_logprob,
    reference,
)

from constrained.spec import GrammarSpec
from scheduler.messages import Rejected

BOTH = pytest.mark.parametrize("max_in_flight", [0, 1], ids=["plain", "overlapped"])
SPEC = GrammarSpec(kind="regex", value="[0-9]{5}")


@BOTH
def test_one_request_gives_what_sequential_decoding_gives(max_in_flight: int) -> None:
    harness = Harness(max_in_flight)
    params = harness.submit("a", [1, 2, 3], max_tokens=20)
    harness.run()
    assert harness.tokens("a") == reference([1, 2, 3], params)
    assert harness.finish("a").reason == "length"
    assert harness.finish("a").usage.completion_tokens == 20
    harness.check_nothing_leaked()


@BOTH
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_schedule_gives_the_sequential_outputs(max_in_flight: int, data: st.DataObject) -> None:
    """Random arrivals, aborts, shared prefixes, tiny pools and budgets, forced preemption, drafts, grammars."""
    seed = data.draw(st.integers(0, 2**32))
    rng = random.Random(seed)
    num_pages = data.draw(st.sampled_from([8, 12, 24, 64]))
    max_total = min(CONTEXT, num_pages * PAGE_SIZE)
    manager = FakeGrammarManager()
    harness = Harness(
        max_in_flight,
        num_pages=num_pages,
        drafter=RandomDrafter(seed) if data.draw(st.booleans()) else None,
        grammar_manager=manager,
        max_running_requests=data.draw(st.integers(1, 8)),
        max_batch_tokens=data.draw(st.sampled_from([1, 3, 8, 64])),
        policy=data.draw(st.sampled_from(["lpm", "fcfs"])),
        prefix_cache=data.draw(st.booleans()),
    )
    prefixes = [[rng.randrange(EOS) for _ in range(rng.randrange(1, 14))] for _ in range(3)]
    expected: dict[tuple[str, int], tuple[list[int], bool]] = {}
    arriving = [f"r{i}" for i in range(data.draw(st.integers(1, 14)))]
    live: list[str] = []
    aborted: set[str] = set()
    while arriving or harness.scheduler.has_work or manager.waiting or manager.ready:
        if arriving and rng.random() < 0.4:
            request_id = arriving.pop(0)
            prompt = rng.choice(prefixes) + [rng.randrange(EOS) for _ in range(rng.randrange(1, 8))]
            grammar = DigitsGrammar(length=rng.randrange(1, 9)) if rng.random() < 0.3 else None
            params = harness.submit(
                request_id,
                prompt,
                n=rng.choice([1, 1, 3]),
                max_tokens=rng.randrange(1, 24),
                seed=rng.randrange(5),
                ignore_eos=rng.random() < 0.5,
                priority=rng.choice([0, 0, 1]),
                stream=rng.random() < 0.7,
                grammar=SPEC if grammar is not None else None,
                logprobs=rng.choice([None, 0]),
            )
            for index in range(params.n):
                tokens = reference(prompt, params, choice_index=index, max_total=max_total, grammar=grammar)
                expected[request_id, index] = tokens, params.logprobs is not None
            live.append(request_id)
            if grammar is not None:
                harness.step()
                manager.finish(grammar)
        if live and rng.random() < 0.05:
            request_id = rng.choice(live)
            aborted.add(request_id)
            harness.abort(request_id)
        if harness.planner.running and rng.random() < 0.1:
            harness.planner._preempt(rng.choice(harness.planner.running))
        harness.step()
    refused = {message.request_id for message in harness.messages(Rejected)}
    assert refused <= aborted
    for (request_id, index), (tokens, wants_logprobs) in expected.items():
        if request_id in refused:
            continue
        finish = harness.finish(request_id, index)
        got = harness.tokens(request_id, index)
        if finish.reason == "abort":
            assert request_id in aborted
            assert got == tokens[: len(got)]
        else:
            assert got == tokens
            assert finish.usage.completion_tokens == len(tokens)
        if wants_logprobs:
            logprobs = [item for output in harness.outputs(request_id, index) for item in output.logprobs]
            assert logprobs == [fake_logprob(token) for token in got]
    harness.check_nothing_leaked()


@BOTH
def test_choices_differ_and_are_each_their_own_sequence(max_in_flight: int) -> None:
    harness = Harness(max_in_flight)
    params = harness.submit("a", list(range(10)), n=4)
    harness.run()
    outputs = [harness.tokens("a", index) for index in range(4)]
    assert outputs == [reference(range(10), params, choice_index=index) for index in range(4)]
    assert len({tuple(tokens) for tokens in outputs}) == 4
    assert harness.admitted() == ["a"]


@BOTH
def test_choices_of_one_request_compute_its_prompt_once(max_in_flight: int) -> None:
    harness = Harness(max_in_flight)
    prompt = list(range(40))
    harness.submit("a", prompt, n=4, max_tokens=1)
    harness.run()
    # 39 tokens at most can be shared: 9 whole pages of 4.
    assert harness.executor.computed_tokens == 40 + 3 * (40 - 36)
    assert {harness.finish("a", index).usage.cached_tokens for index in range(4)} == {0}


@BOTH
def test_unstreamed_tokens_come_in_one_output(max_in_flight: int) -> None:
    harness = Harness(max_in_flight)
    params = harness.submit("a", [1], stream=False, max_tokens=12)
    harness.run()
    (output,) = harness.outputs("a")
    assert output.token_ids == reference([1], params)


@BOTH
def test_drafts_change_nothing_but_the_number_of_steps(max_in_flight: int) -> None:
    plain, drafted = Harness(max_in_flight), Harness(max_in_flight, drafter=RandomDrafter(1))
    for harness in (plain, drafted):
        for index in range(4):
            harness.submit(f"r{index}", [index, 5], max_tokens=40, seed=index, ignore_eos=False)
        harness.run()
    for index in range(4):
        assert drafted.tokens(f"r{index}") == plain.tokens(f"r{index}")
        assert drafted.finish(f"r{index}") == plain.finish(f"r{index}")
    counters = drafted.scheduler.counters
    assert 0 < counters.draft_tokens_accepted < counters.draft_tokens_proposed
    if max_in_flight == 0:
        assert counters.steps < plain.scheduler.counters.steps


@BOTH
def test_overlapped_steps_are_launched_before_results_are_read(max_in_flight: int) -> None:
    harness = Harness(max_in_flight)
    harness.submit("a", [1, 2, 3], max_tokens=6)
    harness.run()
    pending = [plan.rows[0].pending_row for plan in harness.executor.plans]
    assert pending == ([None] * 6 if max_in_flight == 0 else [None] + [0] * 5)


@BOTH
def test_the_context_ends_an_answer_with_length(max_in_flight: int) -> None:
    harness = Harness(max_in_flight, num_pages=128)
    params = harness.submit("a", [3] * (CONTEXT - 5), max_tokens=100)
    harness.run()
    assert harness.tokens("a") == reference([3] * (CONTEXT - 5), params)
    assert harness.finish("a").reason == "length"
    assert harness.finish("a").usage.completion_tokens == 5


@BOTH
def test_prompt_logprobs_come_once_and_before_any_output(max_in_flight: int) -> None:
    harness = Harness(max_in_flight, max_batch_tokens=7)
    prompt = list(range(30))
    harness.submit("warm", prompt, max_tokens=1)
    harness.run()
    harness.submit("a", prompt, n=3, prompt_logprobs=0, max_tokens=3)
    harness.step(2)
    harness.planner._preempt(harness.planner.running[0])
    harness.run()
    (logprobs,) = harness.prompt_logprobs("a")
    assert logprobs == [None, *(fake_logprob(token) for token in prompt[1:])]
    kinds = [type(message).__name__ for _, message in harness.connection.sent]
    first_output = next(
        i
        for i, (_, message) in enumerate(harness.connection.sent)
        if getattr(message, "outputs", None) and message.outputs[0].request_id == "a"
    )
    assert kinds.index("PromptLogprobs") < first_output


@BOTH
@pytest.mark.parametrize("length", [1, 2, 8, 9, 30])
def test_scoring_alone_generates_nothing(max_in_flight: int, length: int) -> None:
    harness = Harness(max_in_flight, max_batch_tokens=8)
    prompt = list(range(length))
    harness.submit("a", prompt, prompt_logprobs=0, max_tokens=0)
    harness.run()
    assert harness.prompt_logprobs("a") == [[None, *(fake_logprob(token) for token in prompt[1:])]]
    assert harness.tokens("a") == []
    assert harness.finish("a").reason == "length"
    harness.check_nothing_leaked()


# the end of an answer


@BOTH
def test_the_end_of_text_stops_and_counts_itself(max_in_flight: int) -> None:
    harness = Harness(max_in_flight)
    prompt, params = _prompt_reaching(EOS)
    harness.submit("a", prompt, ignore_eos=False, max_tokens=200)
    harness.run()
    tokens = reference(prompt, params)
    finish = harness.finish("a")
    assert tokens[-1] == EOS
    assert harness.tokens("a") == tokens
    assert (finish.reason, finish.stop_reason, finish.num_bytes) == ("stop", None, None)
    assert finish.usage.completion_tokens == len(tokens)


@BOTH
def test_ignored_end_of_text_does_not_stop(max_in_flight: int) -> None:
    harness = Harness(max_in_flight)
    prompt, params = _prompt_reaching(EOS)
    harness.submit("a", prompt, ignore_eos=True, max_tokens=200)
    harness.run()
    assert harness.finish("a").reason == "length"
    assert len(harness.tokens("a")) == 200
    assert harness.tokens("a")[: len(reference(prompt, params))][-1] == EOS


@BOTH
def test_a_stop_token_of_ordinary_text_is_cut_unless_asked_for(max_in_flight: int) -> None:
    tokens = reference([7], Harness(0).submit("x", [7], max_tokens=10))
    stop_id = tokens[4]
    begin = sum(len(TOKEN_BYTES[token]) for token in tokens[: tokens.index(stop_id)])
    for included, cut in ((False, begin), (True, None)):
        harness = Harness(max_in_flight)
        harness.submit("a", [7], max_tokens=10, stop_token_ids=(stop_id,), include_stop_str_in_output=included)
        harness.run()
        finish = harness.finish("a")
        assert (finish.reason, finish.stop_reason, finish.num_bytes) == ("stop", stop_id, cut)
        assert finish.usage.completion_tokens == tokens.index(stop_id) + 1


@BOTH
def test_a_stop_string_over_several_tokens_is_cut_exactly(max_in_flight: int) -> None:
    tokens = reference([7], Harness(0).submit("x", [7], max_tokens=20))
    text = b"".join(TOKEN_BYTES[token] for token in tokens)
    stop = text[9:14]
    start = text.index(stop)
    for included in (False, True):
        harness = Harness(max_in_flight)
        harness.submit("a", [7], max_tokens=20, stop=(stop, b"zzz"), include_stop_str_in_output=included)
        harness.run()
        finish = harness.finish("a")
        assert finish.reason == "stop"
        assert finish.stop_reason == stop.decode()
        assert finish.num_bytes == start + (len(stop) if included else 0)
        lengths = [sum(len(TOKEN_BYTES[t]) for t in tokens[:count]) for count in range(len(tokens) + 1)]
        needed = next(count for count, length in enumerate(lengths) if length >= start + len(stop))
        assert finish.usage.completion_tokens == needed
        # What was shown before the end never reached into the stop string.
        shown = 0
        for output in harness.outputs("a")[:-1]:
            shown += sum(len(TOKEN_BYTES[t]) for t in output.token_ids)
            assert shown - output.held_bytes <= start


@BOTH
def test_below_the_minimum_nothing_but_length_ends_an_answer(max_in_flight: int) -> None:
    tokens = reference([7], Harness(0).submit("x", [7], max_tokens=40))
    text = b"".join(TOKEN_BYTES[token] for token in tokens)
    harness = Harness(max_in_flight)
    harness.submit("a", [7], max_tokens=40, min_tokens=20, stop=(text[:2],), stop_token_ids=(tokens[1],))
    harness.submit("b", [7], max_tokens=10, min_tokens=10, stop=(text[:2],), stop_token_ids=(tokens[1],))
    harness.run()
    assert harness.finish("a").usage.completion_tokens >= 20
    assert harness.finish("a").num_bytes is None or harness.finish("a").num_bytes > 0
    assert harness.finish("b").usage.completion_tokens == 10


@BOTH
def test_a_complete_grammar_ends_the_answer_even_below_the_minimum(max_in_flight: int) -> None:
    manager = FakeGrammarManager()
    harness = Harness(max_in_flight, grammar_manager=manager)
    params = harness.submit("a", [7], n=2, max_tokens=40, min_tokens=20, stop=(b"a", b"b", b"c", b"d"), grammar=SPEC)
    harness.step()
    assert harness.admitted() == []
    manager.finish(DigitsGrammar(length=5))
    harness.run()
    assert harness.admitted() == ["a"]
    for index in range(2):
        assert harness.tokens("a", index) == reference([7], params, choice_index=index, grammar=DigitsGrammar(length=5))
        assert len(harness.tokens("a", index)) == 5
        assert harness.finish("a", index).reason == "stop"


def _prompt_reaching(token: int) -> tuple[list[int], object]:
    """A prompt whose answer has that token before its 200th."""
    for first in range(96):
        params = Harness(0).submit("x", [first], max_tokens=200, ignore_eos=False)
        tokens = reference([first], params)
        if tokens[-1] == token and len(tokens) > 3:
            return [first], params
    raise AssertionError("no such prompt")

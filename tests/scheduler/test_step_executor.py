"""The real executor and sampler on a small model that computes real, context-dependent logits on paged state."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from scheduler_fakes import EOS, VOCAB_SIZE, AnyDrafter, DigitsGrammar, FakeGrammarManager, Harness
from tiny_model import NAN_TOKEN, TinyRunner, logits_behind

from constrained.masks.slots import GrammarMasks
from constrained.spec import GrammarSpec
from sampling.sampler import SamplerState
from scheduler.execution.step_executor import StepExecutor
from scheduler.messages import TokenLogprob
from scheduler.requests.request import Request

BOTH = pytest.mark.parametrize("max_in_flight", [0, 1], ids=["plain", "overlapped"])
SPEC = GrammarSpec(kind="regex", value="[0-9]{5}")


class GreedyGuesser(AnyDrafter):
    """Guesses the plain greedy continuation, wrong now and then."""

    def __init__(self) -> None:
        self.random = random.Random(1)

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        tokens = list(request.token_ids)
        for _ in range(min(max_tokens, 4)):
            token = int(logits_behind(tokens).argmax())
            tokens.append(token if self.random.random() < 0.8 else 3)
        return tokens[len(request.token_ids) :]


def make_harness(max_in_flight: int, **options: object) -> Harness:
    executor = StepExecutor(
        TinyRunner(),
        SamplerState(VOCAB_SIZE, (EOS,), torch.device("cpu")),
        GrammarMasks(DigitsGrammar.environment, max_slots=64),
        overlap=True,
    )
    executor.max_in_flight = max_in_flight
    harness = Harness(max_in_flight, executor=executor, **options)
    harness.runner = executor._runner  # type: ignore[attr-defined]
    return harness


REQUESTS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0, "seed": 5, "n": 3},
    "penalties": {"temperature": 0.7, "seed": 1, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
    "filters": {"temperature": 1.2, "seed": 2, "top_k": 7, "top_p": 0.8, "min_p": 0.02},
    "logprobs": {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 1},
    "grammar": {"temperature": 1.0, "seed": 3, "grammar": SPEC, "n": 2},
    "minimum": {"temperature": 1.0, "seed": 4, "min_tokens": 10, "ignore_eos": False},
}


def outputs_of(harness: Harness, names: Sequence[str]) -> dict[tuple[str, int], list[int]]:
    manager = harness.scheduler._grammar_manager
    for name in names:
        prompt = [len(name), *range(20)]
        harness.submit(name, prompt, **{"max_tokens": 16, **REQUESTS[name]})  # type: ignore[arg-type]
    harness.step()
    manager.finish(DigitsGrammar(length=9))  # type: ignore[union-attr]
    harness.run()
    return {
        (name, index): harness.tokens(name, index)
        for name in names
        for index in range(REQUESTS[name].get("n", 1))  # type: ignore[call-overload]
    }


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, int], list[int]]:
    expected = {}
    for name in REQUESTS:
        harness = make_harness(0, grammar_manager=FakeGrammarManager(), prefix_cache=False)
        expected |= outputs_of(harness, [name])
    return expected


@BOTH
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("num_pages", [14, 64])
def test_outputs_are_those_of_each_request_alone(
    max_in_flight: int, drafts: bool, num_pages: int, alone: dict[tuple[str, int], list[int]]
) -> None:
    harness = make_harness(
        max_in_flight,
        grammar_manager=FakeGrammarManager(),
        drafter=GreedyGuesser() if drafts else None,
        num_pages=num_pages,
        max_batch_tokens=40,
    )
    assert outputs_of(harness, list(REQUESTS)) == alone
    if num_pages == 14:
        assert harness.planner.counters.preemptions > 0
    if drafts:
        assert harness.scheduler.counters.draft_tokens_accepted > 10
    elif max_in_flight:
        assert harness.runner.num_pending > 20  # type: ignore[attr-defined]
    harness.planner.cache.evict(num_pages)
    assert harness.planner.pool.num_free == num_pages


@BOTH
def test_a_constrained_answer_has_only_legal_tokens(
    max_in_flight: int, alone: dict[tuple[str, int], list[int]]
) -> None:
    for index in range(2):
        assert len(alone["grammar", index]) == 9
        assert max(alone["grammar", index]) < 50


@BOTH
@pytest.mark.parametrize("budget", [5, 64])
def test_prompt_and_output_logprobs_are_the_models_own(max_in_flight: int, budget: int) -> None:
    harness = make_harness(max_in_flight, max_batch_tokens=budget)
    prompt = [5, *range(20)]
    harness.submit("a", prompt, temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=1)
    harness.submit("b", prompt, temperature=0.0, max_tokens=4)
    harness.run()
    tokens = harness.tokens("a")
    (prompt_logprobs,) = harness.prompt_logprobs("a")
    output_logprobs = [item for output in harness.outputs("a") for item in output.logprobs or ()]
    everything = prompt + tokens
    assert prompt_logprobs[0] is None
    for position, item in enumerate([*prompt_logprobs[1:], *output_logprobs], start=1):
        expected = logits_behind(everything[:position]).log_softmax(0)
        assert isinstance(item, TokenLogprob)
        assert item.token_id == everything[position]
        assert item.logprob == pytest.approx(float(expected[item.token_id]), abs=1e-4)
        assert len(item.top) == (1 if position < len(prompt) else 2)
        assert item.top[0].token_id == int(expected.argmax())


@BOTH
def test_logits_of_nan_end_their_request_alone(max_in_flight: int) -> None:
    harness = make_harness(max_in_flight)
    harness.submit("nan", [1, NAN_TOKEN, 3], max_tokens=10)
    harness.submit("good", [1, 2, 3], max_tokens=10, temperature=0.0, bad_words_token_ids=((NAN_TOKEN,),))
    harness.run()
    assert harness.failure("nan").status == 500
    assert "finite" in harness.failure("nan").message
    assert len(harness.tokens("good")) == 10


@BOTH
def test_a_grammar_library_that_fails_ends_its_request_alone(max_in_flight: int) -> None:
    class Broken(DigitsGrammar):
        def copy(self) -> Broken:
            return Broken()

        def fill_vocab_mask(self, vocab_mask: torch.Tensor, idx: int) -> None:
            raise RuntimeError("the library fell over")

    manager = FakeGrammarManager()
    harness = make_harness(max_in_flight, grammar_manager=manager)
    harness.submit("broken", [1], grammar=SPEC)
    harness.submit("good", [1, 2], max_tokens=10, temperature=0.0)
    harness.step()
    manager.finish(Broken())
    harness.run()
    assert "fell over" in harness.failure("broken").message
    assert len(harness.tokens("good")) == 10


def test_a_failure_of_the_model_is_loud() -> None:
    harness = make_harness(0)
    harness.submit("a", [1])

    def fail(*args: object) -> torch.Tensor:
        raise RuntimeError("out of memory")

    harness.runner.forward = fail  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="out of memory"):
        harness.step()

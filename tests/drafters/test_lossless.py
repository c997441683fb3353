"""Whatever is drafted, answers are those of plain decoding."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from constrained.spec import GrammarSpec, ReasoningSpec
from sampling.params import SamplingParams
from scheduler.drafters.draft_model import DraftModelDrafter
from scheduler.memory.kv_pool import KvPool
from scheduler.messages import GenerateRequest

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "category": {"enum": ["billing", "delivery"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "größe": {"const": "naïve façade"},
    },
    "required": ["name", "category", "age", "größe"],
    "additionalProperties": False,
}
JSON = GrammarSpec(kind="json_schema", value=json.dumps(SCHEMA))
PHRASE = "The quick brown fox jumps over the lazy dog. "
DRAFTERS: dict[str, dict[str, object]] = {
    "grammar": {"jump_forward": True},
    "ngram": {"speculative": "ngram"},
    "grammar and ngram, long": {"jump_forward": True, "speculative": "ngram", "max_draft_tokens": 24},
    "draft model": {"jump_forward": True, "speculative": "draft-model"},
}


def requests_of(tiny: Any) -> list[GenerateRequest]:
    def request(name: str, text: str, grammar: GrammarSpec | None = None, **more: object) -> GenerateRequest:
        top = {key: more.pop(key) for key in ("reasoning", "prediction_token_ids") if key in more}
        sampling = SamplingParams(**{"max_tokens": 40, "temperature": 0.0, "seed": 1, **more})  # type: ignore[arg-type]
        return GenerateRequest(
            request_id=name,
            prompt_token_ids=tiny.encode(text),
            sampling=sampling,
            grammar=grammar,
            **top,  # type: ignore[arg-type]
        )

    marker = tuple(tiny.encode("</think>")) or (1,)
    thinking = ReasoningSpec(think_end_ids=marker, is_thinking=True, budget=6)
    return [
        request("free", PHRASE * 3),
        request("free, seeded", PHRASE * 2, temperature=1.0, seed=5, n=3),
        request("filters", PHRASE, temperature=0.8, top_k=5, top_p=0.9),
        request("penalties", PHRASE * 2, repetition_penalty=1.4, frequency_penalty=0.5, presence_penalty=0.3),
        request("penalties, seeded", PHRASE, temperature=0.7, repetition_penalty=1.2, min_tokens=20),
        request("bias", PHRASE, logit_bias={tiny.encode("fox")[0]: 4.0}),
        request("logprobs", PHRASE, logprobs=2, n=2, temperature=0.5),
        request("stop", PHRASE * 2, stop=(b"e", b"qu"), max_tokens=60, temperature=1.0),
        request("json", "Write: ", JSON, max_tokens=120),
        request("json, seeded", "Write: ", JSON, max_tokens=120, temperature=1.0, n=3),
        request("json, cut", "Write: ", JSON, max_tokens=11),
        request("json, biased", "Write: ", JSON, max_tokens=120, logit_bias={tiny.encode('"')[0]: 5.0}),
        request("regex", "Write: ", GrammarSpec(kind="regex", value="(red|green) [a-c]{2} and naïve日本(語|x)")),
        request("outlines", "x", GrammarSpec(kind="regex", value="ab(cdefgh)?ij[0-9]k{6}", backend="outlines"), n=2),
        request("thinking", "Think: ", JSON, max_tokens=120, reasoning=thinking),
        request("predicted", PHRASE, prediction_token_ids=tiny.encode(PHRASE * 3)),
        request(
            "predicted json",
            "Write: ",
            JSON,
            max_tokens=120,
            prediction_token_ids=tiny.encode('{"name":"abc","category":"billing","age":5,"größe":"naïve façade"}'),
        ),
    ]


@pytest.fixture(scope="module")
def plain(tiny: Any) -> dict[tuple[str, int], Any]:
    """Each request alone, one token a step."""
    engine = tiny.engine()
    run = engine.run(
        [_without_drafts(request) for request in requests_of(tiny)],
        together=False,
    )
    assert not run.errors
    assert all(stats.proposed_tokens == 0 for stats in engine.stats().values())
    return run.answers


def _without_drafts(request: GenerateRequest) -> GenerateRequest:
    return msgspec.structs.replace(request, may_draft=False)


@pytest.fixture
def draft_model(make_tiny: Callable[..., Any]) -> Callable[[int], DraftModelDrafter]:
    def make(num_pages: int = 400) -> DraftModelDrafter:
        model = make_tiny(0)
        return DraftModelDrafter(
            model.runner, KvPool(num_pages, 4), context_length=512, max_tokens=6, max_batch_tokens=64
        )

    return make


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_answers_are_those_of_plain_decoding(
    tiny: Any, plain: dict[tuple[str, int], Any], draft_model: Callable[..., Any], name: str, together: bool
) -> None:
    source = draft_model() if name == "draft model" else None
    engine = tiny.engine(draft_model=source, **DRAFTERS[name])
    run = engine.run(requests_of(tiny), together=together)
    assert not run.errors
    assert run.answers == plain
    stats = engine.stats()
    accepted = {key: one.accepted_tokens for key, one in stats.items() if one.accepted_tokens}
    if "grammar" in name or name == "draft model":
        assert accepted["grammar"] > 20
    if name == "draft model":
        # It is the same model with the same noise: what penalties, bias and grammars leave alone agrees.
        assert accepted["draft-model"] > 100


@pytest.mark.parametrize("seed", range(3))
def test_preemption_at_any_step_changes_no_answer(tiny: Any, plain: dict[tuple[str, int], Any], seed: int) -> None:
    requests = requests_of(tiny)
    random.Random(seed).shuffle(requests)
    engine = tiny.engine(jump_forward=True, speculative="ngram", num_pages=60 + 7 * seed, max_batch_tokens=48)
    run = engine.run(requests, together=True)
    assert engine.scheduler.planner.counters.preemptions > 3
    assert run.answers == plain


def test_a_draft_model_without_pages_for_everyone_changes_no_answer(
    tiny: Any, plain: dict[tuple[str, int], Any], draft_model: Callable[..., Any]
) -> None:
    source = draft_model(num_pages=40)
    run = tiny.engine(draft_model=source, speculative="draft-model").run(requests_of(tiny), together=True)
    assert run.answers == plain
    assert source._pool.num_free == 40, "pages of finished requests were kept"


def test_a_forced_answer_takes_fewer_steps(tiny: Any) -> None:
    request = GenerateRequest(
        request_id="a",
        prompt_token_ids=tiny.encode("Write: "),
        sampling=SamplingParams(max_tokens=120, temperature=0.0),
        grammar=JSON,
    )
    without, with_drafts = tiny.engine(), tiny.engine(jump_forward=True)
    slow = [without.run([request], together=False) for _ in range(3)][-1]
    fast = [with_drafts.run([request], together=False) for _ in range(3)][-1]
    assert slow.answers == fast.answers
    assert fast.steps <= 0.6 * slow.steps, (fast.steps, slow.steps)


def test_a_prediction_that_is_mostly_right_is_followed_and_counted(tiny: Any) -> None:
    request = next(request for request in requests_of(tiny) if request.request_id == "free, seeded")
    request = msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, n=1))
    plain = tiny.engine().run([request], together=False)
    expected = plain.answers[request.request_id, 0].token_ids
    prediction = [*expected[:10], 7, 7, 7, *expected[15:]]
    engine = tiny.engine()
    run = engine.run([msgspec.structs.replace(request, prediction_token_ids=prediction)], together=False)
    assert run.answers == plain.answers
    stats = engine.stats()["prediction"]
    usage = run.usages[request.request_id, 0]
    assert usage.accepted_prediction_tokens == stats.accepted_tokens == plain.steps - run.steps >= 20
    assert usage.rejected_prediction_tokens == stats.proposed_tokens - stats.accepted_tokens > 0


def test_a_request_may_opt_out(tiny: Any) -> None:
    engine = tiny.engine(jump_forward=True, speculative="ngram")
    engine.run([_without_drafts(request) for request in requests_of(tiny)], together=True)
    assert all(stats.proposed_tokens == 0 for stats in engine.stats().values())

"""Whatever a source of drafts or a grammar raises while drafting, the loop and the neighbours go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from constrained.engines.grammar_object import BaseGrammarObject
from constrained.engines.llguidance_backend import LLGuidanceObject
from constrained.errors import GrammarError
from constrained.spec import GrammarSpec
from model_runner.errors import RankError
from sampling.params import SamplingParams
from scheduler.drafters.source import DraftSource
from scheduler.messages import GenerateRequest

FORCED = GrammarSpec(kind="regex", value="(ab|cd)efghijkl(ab|cd)mnopqrst", backend="llguidance")
OTHER = GrammarSpec(kind="regex", value="(xy|zy)efghijkl(ab|cd)mnopqrst", backend="llguidance")


class PanicError(BaseException):
    """A panic in a Rust engine is no ``Exception``."""


class Faulty(DraftSource):
    """Raises in one of its calls for one request; for the others it guesses."""

    name = "faulty"

    def __init__(self, call: str, error: type[BaseException]) -> None:
        self.call, self.error = call, error
        self.num_raised = 0

    def _meet(self, call: str, *requests: Any) -> None:
        if call == self.call and any(request.group.message.request_id == "bad" for request in requests):
            self.num_raised += 1
            raise self.error("a fault of the drafter")

    def wants(self, request: Any) -> bool:
        self._meet("wants", request)
        return True

    def prepare(self, requests: Sequence[Any]) -> None:
        self._meet("prepare", *requests)

    def propose(self, request: Any, behind: tuple[int, ...], max_tokens: int) -> Sequence[int]:
        self._meet("propose", request)
        return [5, 6][:max_tokens]

    def verified(self, request: Any, num_proposed: int, num_accepted: int) -> None:
        self._meet("verified", request)

    def remove(self, request: Any) -> None:
        self._meet("remove", request)


def free(name: str, tiny: Any) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    return GenerateRequest(request_id=name, prompt_token_ids=tiny.encode(f"fox {name}"), sampling=sampling)


def constrained(name: str, tiny: Any, spec: GrammarSpec) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=40, temperature=0.0)
    return GenerateRequest(
        request_id=name, prompt_token_ids=tiny.encode(f"fox {name}"), sampling=sampling, grammar=spec
    )


@pytest.mark.parametrize("error", [ValueError, PanicError])
@pytest.mark.parametrize("call", ["wants", "prepare", "propose", "verified", "remove"])
def test_a_source_that_raises_costs_no_answer(tiny: Any, call: str, error: type[BaseException]) -> None:
    requests = [free("bad", tiny), free("good", tiny)]
    expected = tiny.engine().run(requests, together=True).answers
    source = Faulty(call, error)
    engine = tiny.engine(draft_model=source, speculative="draft-model")
    run = engine.run(requests, together=True)
    assert not run.errors
    assert run.answers == expected
    assert source.num_raised
    assert engine.run([free("later", tiny)], together=True).answers, "the loop turns"
    assert engine.stats()["faulty"].proposed_tokens


def test_a_lost_rank_still_ends_the_group(tiny: Any) -> None:
    engine = tiny.engine(draft_model=Faulty("propose", RankError), speculative="draft-model")
    with pytest.raises(RankError):
        engine.run([free("bad", tiny)], together=True)


@pytest.mark.parametrize("call", ["_forced_bytes", "_accept", "_rollback", "_is_accepting"])
@pytest.mark.parametrize("error", [GrammarError("too complex"), RuntimeError("a bug"), PanicError("a panic")], ids=repr)
def test_a_grammar_that_breaks_ends_at_most_its_own_answer(
    tiny: Any, call: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [constrained("bad", tiny, FORCED), constrained("good", tiny, OTHER), free("free", tiny)]
    expected = tiny.engine().run(requests, together=True).answers
    works = getattr(LLGuidanceObject, call)

    def breaks(self: BaseGrammarObject, *arguments: object) -> object:
        if "xy|zy" not in self.grammar and self._num_accepted >= 3:  # type: ignore[attr-defined]
            raise error
        return works(self, *arguments)

    monkeypatch.setattr(LLGuidanceObject, call, breaks)
    run = tiny.engine(jump_forward=True, speculative="ngram").run(requests, together=True)
    for key in (("good", 0), ("free", 0)):
        assert run.answers[key] == expected[key]
    if "bad" not in run.errors:
        assert run.answers["bad", 0] == expected["bad", 0]
    elif call == "_forced_bytes":
        pytest.fail("plain decoding asks for no forced bytes")

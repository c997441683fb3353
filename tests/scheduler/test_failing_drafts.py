"""Whatever a drafter or a grammar raises while drafts are made ends at most the request it was raised for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from scheduler_fakes import EOS, VOCAB_SIZE, DigitsGrammar, FakeGrammarManager, Harness, next_token, reference, salt_of

from constrained.errors import GrammarError
from constrained.spec import GrammarSpec
from scheduler.drafters.combination import CombinedDrafter
from scheduler.drafters.source import DraftSource
from scheduler.requests.request import Request

SPEC = GrammarSpec(kind="regex", value="any")


class Failing(DraftSource):
    """Proposes the right tokens, and raises in one method for the requests of one prompt."""

    def __init__(self, method: str) -> None:
        self.name = method
        self.num_raised = 0

    def _maybe_raise(self, method: str, *requests: Request) -> None:
        if method == self.name and any(request.token_ids[0] == 7 for request in requests):
            self.num_raised += 1
            raise RuntimeError("the source is broken")

    def wants(self, request: Request) -> bool:
        self._maybe_raise("wants", request)
        return True

    def prepare(self, requests: Sequence[Request]) -> None:
        self._maybe_raise("prepare", *requests)

    def propose(self, request: Request, behind: tuple[int, ...], max_tokens: int) -> Sequence[int]:
        self._maybe_raise("propose", request)
        return [next_token(request.token_ids, salt_of(request))][:max_tokens]

    def verified(self, request: Request, num_proposed: int, num_accepted: int) -> None:
        self._maybe_raise("verified", request)

    def remove(self, request: Request) -> None:
        self._maybe_raise("remove", request)


@pytest.mark.parametrize("method", ["wants", "prepare", "propose", "verified", "remove"])
def test_a_source_that_raises_is_not_asked_again_and_changes_no_answer(method: str) -> None:
    source = Failing(method)
    harness = Harness(0, drafter=CombinedDrafter([source], VOCAB_SIZE))
    params = harness.submit("broken", [7, 1, 2])
    harness.submit("whole", [8, 1, 2])
    harness.run()
    assert harness.tokens("broken") == reference([7, 1, 2], params)
    assert harness.tokens("whole") == reference([8, 1, 2], params)
    assert source.num_raised == 1
    harness.check_nothing_leaked()


class FragileGrammar(DigitsGrammar):
    """Raises in one method once it has taken two tokens; what it raises is no rejection of a token."""

    def __init__(self, method: str, accepted: Sequence[int] = ()) -> None:
        super().__init__(length=6, accepted=accepted)
        self.method = method

    def _maybe_raise(self, method: str) -> None:
        if method == self.method and len(self.accepted) >= 2:
            raise GrammarError("the lexer is spent")

    def accept_token(self, token_id: int) -> None:
        self._maybe_raise("accept_token")
        super().accept_token(token_id)

    def rollback(self, k: int) -> None:
        self._maybe_raise("rollback")
        super().rollback(k)

    def is_terminated(self) -> bool:
        self._maybe_raise("is_terminated")
        return super().is_terminated()

    def copy(self) -> FragileGrammar:
        return FragileGrammar(self.method)


class Forced(DraftSource):
    """Proposes what the fake model draws under the grammar."""

    name = "forced"

    def propose(self, request: Request, behind: tuple[int, ...], max_tokens: int) -> Sequence[int]:
        assert isinstance(request.grammar, DigitsGrammar)
        return [request.grammar.choose(next_token(request.token_ids, salt_of(request)))][:max_tokens]


@pytest.mark.parametrize("method", ["accept_token", "rollback", "is_terminated"])
def test_a_grammar_that_breaks_while_drafts_are_checked_ends_its_request_alone(method: str) -> None:
    manager = FakeGrammarManager()
    harness = Harness(0, drafter=CombinedDrafter([Forced()], VOCAB_SIZE), grammar_manager=manager)
    params = harness.submit("broken", [7, 1], grammar=SPEC)
    harness.step()
    manager.finish(FragileGrammar(method))
    harness.submit("whole", [8, 1], grammar=SPEC)
    harness.step()
    manager.finish(DigitsGrammar())
    harness.run()
    assert harness.failure("broken").status == 500
    assert harness.tokens("whole") == reference([8, 1], params, grammar=DigitsGrammar())
    harness.check_nothing_leaked()


def test_a_draft_that_the_grammar_refuses_is_cut_and_the_answer_goes_on() -> None:
    class Wrong(DraftSource):
        name = "wrong"

        def propose(self, request: Request, behind: tuple[int, ...], max_tokens: int) -> Sequence[int]:
            return [EOS - 1][:max_tokens]

    manager = FakeGrammarManager()
    harness = Harness(0, drafter=CombinedDrafter([Wrong()], VOCAB_SIZE), grammar_manager=manager)
    params = harness.submit("a", [7, 1], grammar=SPEC)
    harness.step()
    manager.finish(DigitsGrammar())
    harness.run()
    assert harness.tokens("a") == reference([7, 1], params, grammar=DigitsGrammar())

"""Ranks whose compiles take other times, fail or never end: every rank starts and ends the same requests, at once."""

from __future__ import annotations

import pytest
from lockstep import NEVER, Outcome, Ran, Script, check_same, free, run_group

from constrained.errors import InvalidGrammarError
from constrained.spec import GrammarSpec
from sampling.params import SamplingParams
from scheduler.messages import AbortRequest, Admitted, GenerateRequest, Rejected, StepOutput


def constrained(name: str, **sampling: object) -> tuple[bytes, GenerateRequest]:
    params = SamplingParams(**{"max_tokens": 12, "seed": 1, "temperature": 1.0, **sampling})  # type: ignore[arg-type]
    spec = GrammarSpec(kind="regex", value=name)
    return b"a", GenerateRequest(request_id=name, prompt_token_ids=[1, 2, 3], sampling=params, grammar=spec)


def admissions(ran: Ran) -> list[str]:
    return [message.request_id for _, message in ran.sent if isinstance(message, Admitted)]


def test_a_request_starts_when_the_slowest_rank_has_its_grammar_and_others_decode_meanwhile() -> None:
    script = Script()
    script.add(0, constrained("slow"), constrained("quick"), free("free", 30))

    def compile_(rank: int, value: str) -> Outcome:
        return Outcome(turns=20 if (rank, value) == (1, "slow") else 3)

    ran = run_group(3, script, compile_=compile_)
    check_same(ran)
    assert admissions(ran[0]) == ["free", "quick", "slow"]
    assert len(ran[0].tokens()[b"a", "slow", 0]) == 7
    steps = [message for _, message in ran[0].sent if isinstance(message, StepOutput)]
    ends = [output.request_id for step in steps for output in step.outputs if output.finish]
    assert ends == ["quick", "slow", "free"]


def test_the_order_in_which_ranks_finish_does_not_matter() -> None:
    script = Script()
    names = ["x", "y", "z"]
    script.add(0, *(constrained(name) for name in names))
    ran = run_group(3, script, compile_=lambda rank, value: Outcome(turns=(names.index(value) + rank) % 3 * 4))
    check_same(ran)
    assert sorted(admissions(ran[0])) == names  # each was slowest on one of the ranks
    assert len(set(ran[0].finishes().values())) == 1


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("turns", [(0, 0, 0), (0, 8, 4), (8, 0, 4)])
def test_a_grammar_that_fails_on_one_rank_ends_its_request_on_all(failing: int, turns: tuple[int, ...]) -> None:
    script = Script()
    script.add(0, constrained("bad"), constrained("good"), free("free", 15))

    def compile_(rank: int, value: str) -> Outcome:
        fails = (rank, value) == (failing, "bad")
        return Outcome(turns[rank], InvalidGrammarError("it is wrong") if fails else None)

    ran = run_group(3, script, compile_=compile_)
    check_same(ran)
    error = "it is wrong" if failing == 0 else "another rank could not make this grammar"
    assert error in ran[0].errors()["bad"]
    assert sorted(admissions(ran[0])) == ["free", "good"]


def test_a_refusal_of_another_rank_waits_for_the_words_of_rank_0() -> None:
    script = Script()
    script.add(0, constrained("bad"))
    refusal = InvalidGrammarError("it is wrong")
    ran = run_group(2, script, compile_=lambda rank, value: Outcome(0 if rank else 10, refusal))
    check_same(ran)
    (rejected,) = [message for _, message in ran[0].sent if isinstance(message, Rejected)]
    assert rejected.error.status == 400
    assert "it is wrong" in rejected.error.message


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_takes_too_long_ends_the_request_on_all_by_the_clock_of_rank_0(late: int) -> None:
    script = Script()
    script.add(0, constrained("late"), free("free", 40))
    script.add(30, constrained("next"))

    def compile_(rank: int, value: str) -> Outcome:
        return Outcome(NEVER if (rank, value) == (late, "late") else 1)

    ran = run_group(2, script, compile_=compile_, grammar_timeout_turns=12)
    check_same(ran)
    (rejected,) = [message for _, message in ran[0].sent if isinstance(message, Rejected)]
    assert rejected.error.code == "grammar_timeout"
    assert admissions(ran[0]) == ["free", "next"]


@pytest.mark.parametrize("turn", [1, 4, 9])
def test_a_request_aborted_between_the_ranks_readiness_leaves_no_rank_behind(turn: int) -> None:
    script = Script()
    script.add(0, constrained("gone", n=3), constrained("stays"), free("free", 15))
    script.add(turn, (b"a", AbortRequest(request_id="gone")))
    ran = run_group(3, script, compile_=lambda rank, value: Outcome(turns=3 * rank))
    check_same(ran)
    assert len(ran[0].tokens()[b"a", "stays", 0]) == 7
    if turn < 6:
        assert ran[0].errors()["gone"] == "The request was aborted."
    else:
        assert {reason for key, reason in ran[0].finishes().items() if key[1] == "gone"} <= {"abort", "stop"}


@pytest.mark.parametrize("max_in_flight", [0, 1], ids=["plain", "overlapped"])
def test_a_grammar_that_fails_while_rank_0_fills_its_mask_ends_its_request_on_all(max_in_flight: int) -> None:
    script = Script()
    script.add(0, constrained("broken"), constrained("good"), free("free", 15))
    ran = run_group(
        2,
        script,
        compile_=lambda rank, value: Outcome(is_fit_to_fill=value != "broken"),
        max_in_flight=max_in_flight,
    )
    check_same(ran)
    assert "fell over" in ran[0].errors()["broken"]
    assert len(ran[0].tokens()[b"a", "good", 0]) == 7
    assert len(ran[0].tokens()[b"a", "free", 0]) == 15


def test_nothing_is_gathered_while_no_request_waits_for_a_grammar() -> None:
    script = Script()
    script.add(0, free("first", 10))
    script.add(20, constrained("form"))
    script.add(40, free("last", 10))
    ran = run_group(2, script, checks_plans=False, compile_=lambda rank, value: Outcome(turns=5 * rank))
    check_same(ran)
    for each in ran:
        # From its arrival to the turn in which the slower rank is ready: one a turn.
        turns = [
            turn
            for turn, count in enumerate(each.gathers_by_turn)
            if count > (each.gathers_by_turn[turn - 1] if turn else 0)
        ]
        assert turns == [20, 21, 22, 23, 24, 25]


def test_rank_0_looks_again_soon_only_while_another_rank_is_the_late_one() -> None:
    script = Script()
    script.add(0, constrained("mine is late"))
    script.add(20, constrained("other is late"))
    script.add(40)

    def compile_(rank: int, value: str) -> Outcome:
        return Outcome(turns=5 if (rank == 0) == (value == "mine is late") else 0)

    ran = run_group(2, script, compile_=compile_)
    check_same(ran)
    waits = ran[0].waits
    assert waits[1:5] == [1.0] * 4  # its own event ends the wait
    assert waits[21:25] == [0.01] * 4
    assert waits[-1] == 1.0

"""Many ranks run one loop: the same plans on all of them, and the answers of a single one."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from lockstep import Outcome, Script, check_same, free, run_alone, run_group
from memory_ranks import MemoryRanks
from scheduler_fakes import VOCAB_SIZE
from tiny_model import NAN_TOKEN, logits_behind

from constrained.spec import GrammarSpec
from sampling.params import SamplingParams
from scheduler.drafters.combination import CombinedDrafter
from scheduler.drafters.ngram import NgramDrafter
from scheduler.drafters.source import DraftSource
from scheduler.loop import Scheduler
from scheduler.messages import AbortRequest, FlushCache, GenerateRequest, GetStats, Hello, SchedulerStats
from scheduler.ranks.connection import RankDivergedError
from scheduler.ranks.drafts import SharedDrafts
from scheduler.requests.request import Request

CLIENTS = (b"a", b"b")


class DiceDrafter(DraftSource):
    """No two of them guess alike."""

    name = "dice"

    def __init__(self) -> None:
        self.random = random.SystemRandom()

    def propose(self, request: Request, behind: tuple[int, ...], max_tokens: int) -> Sequence[int]:
        tokens = [*request.token_ids, *behind]
        for _ in range(self.random.randrange(max_tokens + 1)):
            greedy = int(logits_behind(tokens).argmax())
            tokens.append(greedy if self.random.random() < 0.6 else self.random.randrange(VOCAB_SIZE))
        return tokens[len(request.token_ids) + len(behind) :]


def shared_dice(ranks: MemoryRanks | None) -> CombinedDrafter:
    dice: DraftSource | None = DiceDrafter() if ranks is None or ranks.rank == 0 else None
    if ranks is not None:
        dice = SharedDrafts("dice", dice, ranks, 5)  # type: ignore[arg-type]
    assert dice is not None
    return CombinedDrafter([NgramDrafter(4), dice], VOCAB_SIZE)


def random_script(seed: int) -> tuple[Script, set[str]]:
    """Arrivals, aborts and departures in random order; and the requests that may not come to their end."""
    choose = random.Random(seed)
    script = Script()
    cut: set[str] = set()
    for number in range(12):
        turn, client, name = choose.randrange(40), choose.choice(CLIENTS), f"r{number}"
        params = SamplingParams(
            max_tokens=choose.randrange(1, 30),
            seed=choose.choice([None, number]),
            temperature=choose.choice([0.0, 1.0]),
            n=choose.choice([1, 1, 3]),
            ignore_eos=choose.random() < 0.5,
            frequency_penalty=choose.choice([0.0, 0.5]),
            stop=choose.choice([(), (b"abc",)]),
            logprobs=choose.choice([None, 2]),
            prompt_logprobs=choose.choice([None, None, 1]),
        )
        prompt = [*range(choose.randrange(1, 25)), choose.choice([5, 5, 5, NAN_TOKEN])]
        grammar = GrammarSpec(kind="regex", value=name) if choose.random() < 0.4 else None
        message = GenerateRequest(
            request_id=name,
            prompt_token_ids=prompt,
            sampling=params,
            grammar=grammar,
            stream=choose.random() < 0.7,
            priority=choose.choice([0, 0, 1]),
        )
        script.add(turn, (client, message))
        if choose.random() < 0.2:
            script.add(turn + choose.randrange(15), (choose.choice(CLIENTS), AbortRequest(request_id=name)))
            cut.add(name)
    script.add(choose.randrange(40), (b"a", FlushCache(call_id=1)), (b"b", GetStats(call_id=2)))
    if choose.random() < 0.5:
        script.add(30, (b"b", Hello()))
        script.add(33, vanished=[b"b"])
        cut |= {
            message.request_id
            for events in script.turns.values()
            for client, message in events.messages
            if client == b"b" and isinstance(message, GenerateRequest)
        }
    return script, cut


def compile_in_turns(seed: int, rank: int, value: str) -> Outcome:
    """Another time on each rank."""
    return Outcome(turns=random.Random(f"{seed} {rank} {value}").choice([0, 0, 2, 9]))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("max_in_flight", [0, 1], ids=["plain", "overlapped"])
@pytest.mark.parametrize("drafts", [False, True], ids=["undrafted", "drafted"])
def test_every_rank_plans_the_same_steps_and_the_answers_are_a_single_ranks(
    size: int, max_in_flight: int, drafts: bool
) -> None:
    preempted = accepted = 0
    for seed in range(4):
        script, cut = random_script(seed)
        options = {
            "max_in_flight": max_in_flight,
            "num_pages": 17,
            "max_batch_tokens": 20,
            "max_running_requests": 5,
            "make_drafter": shared_dice if drafts else lambda ranks: None,
            "compile_": lambda rank, value, seed=seed: compile_in_turns(seed, rank, value),
        }
        ran = run_group(size, script, **options)
        check_same(ran)
        alone = run_alone(script, **options)
        whole = [key for key in alone.finishes() if key[1] not in cut | alone.errors().keys()]
        assert len(whole) > 3
        assert {key: ran[0].tokens().get(key) for key in whole} == {key: alone.tokens()[key] for key in whole}
        assert {key: ran[0].finishes().get(key) for key in whole} == {key: alone.finishes()[key] for key in whole}
        for key, tokens in ran[0].tokens().items():
            others = alone.tokens().get(key, [])
            assert all(mine == other for mine, other in zip(tokens, others, strict=False))
        assert ran[0].errors().keys() - cut == alone.errors().keys() - cut
        preempted += ran[0].scheduler.planner.counters.preemptions
        accepted += ran[0].scheduler.counters.draft_tokens_accepted
    assert preempted > 0
    assert bool(accepted) == drafts


def test_a_rank_whose_requests_come_out_differently_stops_loudly() -> None:
    script = Script()
    script.add(0, free("a", 30))

    def tamper(rank: int, scheduler: Scheduler) -> None:
        if rank == 1 and scheduler.counters.steps == 5:
            scheduler.planner.running[0].token_ids.append(3)

    with pytest.raises(RankDivergedError, match="rank 1 are no longer those of rank 0"):
        run_group(2, script, on_turn=tamper)


def test_ranks_that_plan_different_steps_say_which() -> None:
    script = Script()
    script.add(0, free("a", 30))

    def guess(ranks: MemoryRanks | None) -> CombinedDrafter:
        return CombinedDrafter([DiceDrafter()], VOCAB_SIZE)

    with pytest.raises(RankDivergedError, match=r"rank \d plans step \d+: a#0 at .*; rank 0 plans step \d+: a#0 at "):
        run_group(2, script, make_drafter=guess)


def test_statistics_and_the_prompts_log_probabilities_come_from_rank_0_alone() -> None:
    script = Script()
    scored = SamplingParams(max_tokens=3, seed=1, temperature=0.0, logprobs=1, prompt_logprobs=2)
    script.add(0, (b"a", GenerateRequest(request_id="s", prompt_token_ids=[1, 2, 3, 4, 5, 6, 7], sampling=scored)))
    script.add(30, (b"a", GetStats(call_id=9)))
    ran = run_group(2, script, max_batch_tokens=3)
    check_same(ran)
    alone = run_alone(script, max_batch_tokens=3)
    assert ran[0].logprobs() == alone.logprobs()
    assert len(alone.logprobs()) == 2
    (stats,) = [message for _, message in ran[0].sent if isinstance(message, SchedulerStats)]
    assert stats.call_id == 9
    assert stats.generated_tokens_total == 3

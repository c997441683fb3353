"""The scheduler on every rank of a group, each in a thread, driven turn by turn by a script that rank 0 alone sees."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from memory_ranks import MemoryGroup, MemoryRanks
from scheduler_fakes import CONTEXT, EOS, PAGE_SIZE, TOKEN_BYTES, VOCAB_SIZE, DigitsGrammar
from tiny_model import NAN_TOKEN, TinyRunner

from constrained.engines.base import InvalidGrammarObject
from constrained.errors import GrammarError
from constrained.masks.slots import GrammarMasks
from constrained.queue.manager import GrammarManager
from constrained.spec import GrammarSpec
from model_runner.forward_row import ForwardRow
from sampling.params import SamplingParams
from sampling.sampler import SamplerState
from scheduler.config import SchedulerConfig
from scheduler.connection import Events
from scheduler.execution.step_executor import StepExecutor
from scheduler.interfaces import Drafter
from scheduler.loop import Scheduler
from scheduler.messages import (
    Failed,
    FromScheduler,
    GenerateRequest,
    PromptLogprobs,
    Rejected,
    SchedulerReady,
    StepOutput,
    ToScheduler,
)
from scheduler.planning.plan import StepPlan
from scheduler.ranks.connection import FollowingConnection, LeadingConnection
from scheduler.ranks.draws import FollowingExecutor
from scheduler.ranks.plan_check import PlanCheck, contents

NEVER = 10**9


@dataclass
class Script:
    """What reaches rank 0, by turn of its loop; behind the last turn it is told to drain."""

    turns: dict[int, Events] = field(default_factory=dict)

    def add(self, turn: int, *messages: tuple[bytes, ToScheduler], vanished: Sequence[bytes] = ()) -> None:
        there = self.turns.get(turn, Events())
        self.turns[turn] = Events(vanished=[*there.vanished, *vanished], messages=[*there.messages, *messages])

    @property
    def length(self) -> int:
        return max(self.turns, default=0) + 1


@dataclass(frozen=True)
class Outcome:
    """How compiling goes on one rank."""

    turns: int = 0
    """Turns of the loop that it takes."""
    error: GrammarError | None = None
    is_fit_to_fill: bool = True
    """Whether the grammar can make masks; only rank 0 finds out."""


Compile = Callable[[int, str], Outcome]
"""By rank and specification."""


class ScriptedGrammar(DigitsGrammar):
    def set_stop_token_ids(self, token_ids: Sequence[int]) -> None:
        pass


class UnfillableGrammar(ScriptedGrammar):
    def copy(self) -> UnfillableGrammar:
        return UnfillableGrammar(VOCAB_SIZE, 7)

    def fill_vocab_mask(self, vocab_mask: torch.Tensor, idx: int) -> None:
        raise RuntimeError("the library fell over")


class ScriptedBackend:
    """Compiles in turns of the loop instead of seconds."""

    def __init__(self, rank: int, compile_: Compile) -> None:
        self.turn = 0
        self.cancelled: list[str] = []
        self._rank = rank
        self._compile = compile_
        self._running: list[tuple[int, Future[Any], Outcome, str]] = []

    def get_cached_or_future_value(self, spec: GrammarSpec, reasoning: object) -> tuple[Future[Any], bool]:
        outcome = self._compile(self._rank, spec.value)
        future: Future[Any] = Future()
        self._running.append((self.turn + outcome.turns, future, outcome, spec.value))
        self._finish()
        return future, False

    def tick(self) -> None:
        self.turn += 1
        self._finish()

    def reset(self) -> None:
        pass

    def note_step(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def _finish(self) -> None:
        running, self._running = self._running, []
        for due, future, outcome, value in running:
            if future.cancelled():
                self.cancelled.append(value)
            elif self.turn < due:
                self._running.append((due, future, outcome, value))
            elif outcome.error is not None:
                future.set_result(InvalidGrammarObject(DigitsGrammar.environment, outcome.error))
            else:
                future.set_result(
                    ScriptedGrammar(length=7) if outcome.is_fit_to_fill else UnfillableGrammar(VOCAB_SIZE, 7)
                )


class ScriptedRouter:
    """Rank 0's socket."""

    num_refused_frames = 0

    def __init__(self, script: Script) -> None:
        self.script = script
        self.turn = -1
        self.on_end: Callable[[], None] = lambda: None
        self.sent: list[tuple[bytes, FromScheduler]] = []
        self.waits: list[float | None] = []

    def receive(self, timeout: float | None) -> Events:
        self.turn += 1
        self.waits.append(timeout)
        if self.turn == self.script.length:
            self.on_end()
        return self.script.turns.get(self.turn, Events())

    def send(self, client: bytes, message: FromScheduler) -> None:
        self.sent.append((client, message))

    def broadcast(self, message: FromScheduler) -> None:
        pass

    def close(self) -> None:
        pass


class PartRunner(TinyRunner):
    """A rank without logits."""

    def forward(self, rows: Sequence[ForwardRow], previous_token_ids: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(rows, previous_token_ids)[:, :0]


@dataclass
class Ran:
    """What one rank did."""

    scheduler: Scheduler
    runner: TinyRunner
    plans: list[bytes]
    calls: dict[str, int]
    gathers_by_turn: list[int]
    """All-gathers up to the end of each turn."""
    sent: list[tuple[bytes, FromScheduler]] = field(default_factory=list)
    waits: list[float | None] = field(default_factory=list)

    def tokens(self) -> dict[tuple[bytes, str, int], list[int]]:
        tokens: dict[tuple[bytes, str, int], list[int]] = defaultdict(list)
        for client, message in self.sent:
            for output in message.outputs if isinstance(message, StepOutput) else ():
                tokens[client, output.request_id, output.choice_index] += output.token_ids
        return dict(tokens)

    def finishes(self) -> dict[tuple[bytes, str, int], str]:
        return {
            (client, output.request_id, output.choice_index): output.finish.reason
            for client, message in self.sent
            if isinstance(message, StepOutput)
            for output in message.outputs
            if output.finish is not None
        }

    def errors(self) -> dict[str, str]:
        kinds = (Rejected, Failed)
        return {m.request_id: m.error.message for _, m in self.sent if isinstance(m, kinds)}

    def logprobs(self) -> list[object]:
        scored = [m.logprobs for _, m in self.sent if isinstance(m, PromptLogprobs)]
        drawn = [o.logprobs for _, m in self.sent if isinstance(m, StepOutput) for o in m.outputs if o.logprobs]
        return [*scored, *drawn]


def run_group(size: int, script: Script, **options: Any) -> list[Ran]:
    """The script on ``size`` ranks."""
    return MemoryGroup(size).run(lambda ranks: _run(script, ranks, **options))


def run_alone(script: Script, **options: Any) -> Ran:
    """The script on a scheduler without ranks."""
    return _run(script, None, **options)


def check_same(ran: Sequence[Ran]) -> None:
    """The ranks planned and computed the same, only rank 0 spoke, and nothing is left of any request."""
    for other in ran[1:]:
        assert other.plans == ran[0].plans
        assert other.runner.kv == ran[0].runner.kv
        assert other.calls == ran[0].calls
        assert other.sent == []
    for each in ran:
        pool = each.scheduler.planner.pool
        assert pool.num_referenced == 0
        assert not each.scheduler._live


def free(name: str, max_tokens: int) -> tuple[bytes, GenerateRequest]:
    """A request without a grammar, with its client."""
    params = SamplingParams(
        max_tokens=max_tokens, seed=2, temperature=1.0, ignore_eos=True, bad_words_token_ids=((NAN_TOKEN,),)
    )
    return b"a", GenerateRequest(request_id=name, prompt_token_ids=[4, 5], sampling=params)


def _run(
    script: Script,
    ranks: MemoryRanks | None,
    *,
    max_in_flight: int = 0,
    num_pages: int = 64,
    compile_: Compile = lambda rank, value: Outcome(),
    grammar_timeout_turns: int = NEVER,
    make_drafter: Callable[[MemoryRanks | None], Drafter | None] = lambda ranks: None,
    checks_plans: bool = True,
    on_turn: Callable[[int, Scheduler], None] = lambda rank, scheduler: None,
    **config: object,
) -> Ran:
    rank = 0 if ranks is None else ranks.rank
    runner = TinyRunner() if rank == 0 else PartRunner()
    environment = DigitsGrammar.environment
    backend = ScriptedBackend(rank, compile_)
    manager: GrammarManager[Any] = GrammarManager(
        environment,
        all_gather=None if ranks is None else ranks.all_gather,
        is_timekeeper=rank == 0,
        backend=backend,  # type: ignore[arg-type]
    )
    executor: StepExecutor | FollowingExecutor
    if rank == 0:
        sampler = SamplerState(VOCAB_SIZE, (EOS,), torch.device("cpu"))
        executor = StepExecutor(runner, sampler, GrammarMasks(environment, 64), overlap=True, ranks=ranks)  # type: ignore[arg-type]
    else:
        executor = FollowingExecutor(runner, ranks, overlap=True)  # type: ignore[arg-type]
    executor.max_in_flight = max_in_flight
    router = ScriptedRouter(script)
    connection: Any = router
    if ranks is not None:
        connection = LeadingConnection(router, ranks) if rank == 0 else FollowingConnection(ranks)  # type: ignore[arg-type]
    plans: list[bytes] = []
    gathers: list[int] = []
    check = PlanCheck(ranks) if ranks is not None and checks_plans else None  # type: ignore[arg-type]

    def end_of_receive(plan: StepPlan | None) -> None:
        if check is not None:
            check(plan)
        plans.append(contents(plan))
        if ranks is not None:
            gathers.append(ranks.calls["all_gather"])
        if backend.turn == grammar_timeout_turns:
            for waiting in manager._queue:
                waiting.deadline = 0.0
        backend.tick()
        on_turn(rank, scheduler)

    scheduler = Scheduler(
        SchedulerConfig(endpoint="", **config),  # type: ignore[arg-type]
        executor,
        connection,
        ready=SchedulerReady(
            boot_id="boot",
            context_length=CONTEXT,
            vocab_size=VOCAB_SIZE,
            kv_cache_tokens=num_pages * PAGE_SIZE,
            max_running_requests=64,
            device="cpu",
            dtype="float32",
            attention_backend="torch",
            num_parameters=1,
            weight_bytes=4,
        ),
        page_size=PAGE_SIZE,
        eos_token_ids=(EOS,),
        token_bytes=TOKEN_BYTES,
        grammar_manager=manager,
        drafter=make_drafter(ranks),
        draw_seed=lambda generator=random.Random(7): generator.getrandbits(63),  # type: ignore[misc]
        check_plan=end_of_receive,
    )
    router.on_end = scheduler.drain
    if ranks is not None:
        connection.fingerprint = scheduler.fingerprint
        router.on_end = connection.drain
    try:
        scheduler.run_forever()
    finally:
        manager.shutdown()
    calls = {} if ranks is None else dict(ranks.calls)
    return Ran(scheduler, runner, plans, calls, gathers, router.sent, router.waits)

"""The scheduler's loop: receive, plan, launch, collect, answer. Plain and overlapped execution are the same loop."""

from __future__ import annotations

import logging
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.config import SchedulerConfig
from scheduler.connection import Connection
from scheduler.interfaces import Drafter, Executor
from scheduler.memory.kv_pool import KvPool
from scheduler.messages import (
    AbortRequest,
    CacheFlushed,
    FlushCache,
    GenerateRequest,
    GetStats,
    Hello,
    PromptLogprobs,
    SchedulerReady,
    SchedulerStats,
    StepOutput,
    ToScheduler,
)
from scheduler.outputs import Outbox
from scheduler.planning.plan import PlanRow, RowResult, StepPlan
from scheduler.planning.planner import Planner
from scheduler.requests import acceptance
from scheduler.requests.acceptance import RowError
from scheduler.requests.admission import ServingLimits
from scheduler.requests.intake import Intake, random_seed
from scheduler.requests.live_requests import LiveRequests
from scheduler.requests.request import Request, RequestGroup, Status

if TYPE_CHECKING:
    from constrained.queue.manager import GrammarManager

logger = logging.getLogger(__name__)

_GRAMMAR_POLL_SECONDS = 0.01
"""Between two looks at whether another rank has a grammar that this one has: nothing announces that here."""


@dataclass(slots=True)
class LoopCounters:
    steps: int = 0
    generated_tokens: int = 0
    draft_tokens_proposed: int = 0
    draft_tokens_accepted: int = 0


class Scheduler:
    """Serves requests from ``connection`` with the steps of ``executor`` until told to drain."""

    def __init__(
        self,
        config: SchedulerConfig,
        executor: Executor,
        connection: Connection,
        *,
        ready: SchedulerReady,
        page_size: int,
        row_tile: int = 1,
        eos_token_ids: tuple[int, ...],
        token_bytes: Sequence[bytes],
        grammar_manager: GrammarManager[RequestGroup] | None = None,
        drafter: Drafter | None = None,
        draw_seed: Callable[[], int] = random_seed,
        check_plan: Callable[[StepPlan | None], None] | None = None,
        on_heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        self.ready = ready
        self.counters = LoopCounters()
        prepare = None if drafter is None else drafter.prepare
        pool = KvPool(ready.kv_cache_tokens // page_size, page_size)
        self.planner = Planner(config, pool, self._propose, prepare, row_tile)
        self._outbox = Outbox(connection)
        self._live = LiveRequests(self.planner, executor, connection, self._outbox, drafter)
        self._intake = Intake(
            config,
            ServingLimits(
                ready.context_length, ready.kv_cache_tokens // page_size * page_size, ready.vocab_size, eos_token_ids
            ),
            self._live,
            connection,
            ready=ready,
            count_free_places=lambda: self.planner.num_free_places,
            grammar_manager=grammar_manager,
            drafter=drafter,
            token_bytes=token_bytes,
            draw_seed=draw_seed,
        )
        self._max_draft_tokens = config.max_draft_tokens
        self._executor = executor
        self._connection = connection
        self._token_bytes = token_bytes
        self._grammar_manager = grammar_manager
        self._drafter = drafter
        self._launched: deque[StepPlan] = deque()
        self._num_stalls = 0
        self._heartbeat_interval = config.heartbeat_interval
        self._next_heartbeat = 0.0
        self._check_plan = check_plan
        self._on_heartbeat = on_heartbeat

    @property
    def has_work(self) -> bool:
        """Whether there is anything to compute; requests that wait for a grammar are not."""
        return bool(self.planner.running or self.planner.waiting or self._launched)

    def run_forever(self) -> None:
        """Returns once :meth:`drain` was called and every request is over."""
        while not self._intake.is_draining or self._live or self._launched:
            self.receive(self._patience())
            self.step()
            self.beat()

    def beat(self) -> None:
        """Now and then tell everyone that the loop still turns: silence means that it hangs."""
        now = time.monotonic()
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + self._heartbeat_interval
            self._connection.broadcast(StepOutput(outputs=[]))
            self._on_heartbeat()

    def fingerprint(self) -> int:
        """Of what there is and how far it has come; the same on every rank between two turns of the loop."""
        planner = self.planner
        progress = len(self._live), len(planner.waiting), len(self._launched), planner.pool.num_free
        running = [(request.key, len(request.token_ids), request.num_computed) for request in planner.running]
        return zlib.crc32(repr((progress, running)).encode())

    def drain(self) -> None:
        """Refuse new requests and finish those that are there."""
        self._intake.is_draining = True

    def receive(self, timeout: float | None) -> None:
        """Take in messages and ready grammars; see :meth:`Connection.receive` for ``timeout``."""
        events = self._connection.receive(timeout)
        if events.is_draining:
            self.drain()
        for client, message in events.messages:
            self._handle(client, message)
        for client in events.vanished:
            self._drop_client(client)
        self._intake.admit_ready_grammars()

    def step(self) -> None:
        """Launch the next step; read the results of the oldest one if they are due."""
        plan = self.planner.plan()
        if self._check_plan is not None:
            self._check_plan(plan)
        if plan is not None:
            self._executor.launch(plan)
            self._launched.append(plan)
            self._live.step_launched()
            if self._grammar_manager is not None:
                self._grammar_manager.note_step()
            self.counters.steps += 1
        if self._launched and (plan is None or len(self._launched) > self._executor.max_in_flight):
            self._collect()
        elif plan is None:
            self._check_stall()
        self._outbox.flush()

    def _patience(self) -> float:
        """How long the next turn may wait for something to come."""
        if self.has_work:
            return 0.0
        if self._grammar_manager is not None and self._grammar_manager.waits_for_another_rank():
            return _GRAMMAR_POLL_SECONDS
        return self._heartbeat_interval

    def _collect(self) -> None:
        result = self._executor.collect()
        plan = self._launched.popleft()
        self._num_stalls = 0
        # First, so that what ends now waits for the steps launched since, and for nothing in the plain loop.
        self.planner.step_collected()
        self._live.step_collected()
        for row, row_result in zip(plan.rows, result.rows, strict=True):
            self._apply(row, row_result)

    def _apply(self, row: PlanRow, result: RowResult) -> None:
        request = row.request
        if request.status is Status.FINISHED:
            return
        num_computed = acceptance.settle(row, result)
        if result.error is not None:
            self._live.fail(request.group, result.error)
            return
        before = request.num_output
        try:
            finish = acceptance.accept(request, result, self._token_bytes)
        except RowError as error:
            logger.error("request %s failed", request.group.message.request_id, exc_info=error.__cause__)
            self._live.fail(request.group, error.message)
            return
        num_new = request.num_output - before
        self.counters.generated_tokens += num_new
        if row.draft_token_ids:
            # What stands behind the end of the answer was drawn, but is no output.
            self._count_draft(request, len(row.draft_token_ids), min(len(result.token_ids) - 1, num_new))
            if finish is not None:
                finish = acceptance.with_prediction_counts(finish, request)
        self.planner.cache_computed(request, min(num_computed, len(request.token_ids)))
        self._score_prompt(row, result)
        if finish is None and acceptance.is_scored(request, row):
            finish = acceptance.end(request, "length")
        if finish is not None:
            self._live.finish(request, finish)
        self._outbox.add(request)

    def _count_draft(self, request: Request, num_proposed: int, num_accepted: int) -> None:
        self.counters.draft_tokens_proposed += num_proposed
        self.counters.draft_tokens_accepted += num_accepted
        if self._drafter is not None:
            self._drafter.verified(request, num_proposed, num_accepted)

    def _score_prompt(self, row: PlanRow, result: RowResult) -> None:
        group = row.request.group
        if row.request.choice_index or group.sampling.prompt_logprobs is None:
            return
        acceptance.score_prompt(group, row, result.prompt_logprobs)
        if not group.prompt_logprobs_sent and len(group.prompt_logprobs) == row.request.prompt_length - 1:
            group.prompt_logprobs_sent = True
            logprobs = [None, *group.prompt_logprobs]
            self._connection.send(group.client, PromptLogprobs(request_id=group.message.request_id, logprobs=logprobs))

    def _check_stall(self) -> None:
        """Waiting requests that nothing can ever start would turn the loop into a busy wait."""
        if not self.has_work:
            return
        self._num_stalls += 1
        if self._num_stalls > 2:
            raise RuntimeError(
                f"nothing can be planned for {len(self.planner.running)} running and {len(self.planner.waiting)} "
                f"waiting requests with {self.planner.pool.num_available} of {self.planner.pool.num_pages} pages"
            )

    def _handle(self, client: bytes, message: ToScheduler) -> None:
        if isinstance(message, GenerateRequest):
            self._intake.generate(client, message)
        elif isinstance(message, AbortRequest):
            self._intake.abort(client, message.request_id)
        elif isinstance(message, Hello):
            self._intake.greet(client, message)
            self._outbox.discard(client)
        elif isinstance(message, FlushCache):
            freed = self.planner.cache.evict(self.planner.pool.num_pages)
            freed_tokens = freed * self.planner.pool.page_size
            if self._grammar_manager is not None:
                self._grammar_manager.flush()
            self._connection.send(client, CacheFlushed(call_id=message.call_id, freed_tokens=freed_tokens))
        elif isinstance(message, GetStats):
            self._connection.send(client, self.stats(message.call_id))

    def _drop_client(self, client: bytes) -> None:
        num_aborted = self._intake.abort_client(client)
        if num_aborted:  # one that is stopped leaves with nothing to wait for: it has aborted what it had
            logger.warning("HTTP process %s is gone; requests of it that end: %d", client.hex(), num_aborted)
        self._outbox.discard(client)

    def _propose(self, request: Request, max_tokens: int) -> tuple[int, ...]:
        """The drafter's guess up to the first id that could not be verified."""
        if self._drafter is None:
            return ()
        drafts: list[int] = []
        for token_id in self._drafter.propose(request, min(max_tokens, self._max_draft_tokens)):
            if not 0 <= token_id < self.ready.vocab_size:
                break
            drafts.append(token_id)
        return tuple(drafts[: self._max_draft_tokens])

    def stats(self, call_id: int) -> SchedulerStats:
        pool = self.planner.pool
        drafters = self._drafter.stats() if self._drafter is not None else {}
        return SchedulerStats(
            call_id=call_id,
            running_requests=len(self.planner.running),
            waiting_requests=len(self.planner.waiting),
            grammar_queue_requests=len(self._intake.grammar_queue),
            kv_tokens_used=pool.num_referenced * pool.page_size,
            kv_tokens_cached=pool.num_idle * pool.page_size,
            kv_tokens_capacity=pool.num_pages * pool.page_size,
            prompt_tokens_total=self.planner.counters.prompt_tokens,
            cached_tokens_total=self.planner.counters.cached_tokens,
            generated_tokens_total=self.counters.generated_tokens,
            preemptions_total=self.planner.counters.preemptions,
            steps_total=self.counters.steps,
            requests_aborted_total=self._live.num_aborted,
            grammar_cache_bytes=self._grammar_manager.metrics.cache_bytes if self._grammar_manager is not None else 0,
            drafters=drafters,
            counters={
                "refused_frames_total": self._connection.num_refused_frames,
                **(self._grammar_manager.metrics.snapshot() if self._grammar_manager is not None else {}),
                "grammar_forced_tokens_total": drafters["grammar"].proposed_tokens if "grammar" in drafters else 0,
            },
        )

"""The scheduler's loop: receive, plan, launch, collect, answer. Plain and overlapped execution are the same loop."""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler import acceptance, admission
from scheduler.acceptance import RowError
from scheduler.admission import ServingLimits
from scheduler.config import SchedulerConfig
from scheduler.connection import Connection
from scheduler.interfaces import Drafter, Executor
from scheduler.kv_pool import KvPool
from scheduler.messages import (
    AbortRequest,
    Admitted,
    CacheFlushed,
    ErrorInfo,
    Failed,
    Finish,
    FlushCache,
    GenerateRequest,
    GetStats,
    Hello,
    PromptLogprobs,
    Rejected,
    SchedulerReady,
    SchedulerStats,
    ToScheduler,
)
from scheduler.outputs import Outbox
from scheduler.plan import PlanRow, RowResult, StepPlan
from scheduler.planner import Planner
from scheduler.request import Request, RequestGroup, Status, make_choices, make_group

if TYPE_CHECKING:
    from constrained.manager import GrammarManager

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LoopCounters:
    steps: int = 0
    generated_tokens: int = 0
    aborted_requests: int = 0
    draft_tokens_proposed: int = 0
    draft_tokens_accepted: int = 0


def random_seed() -> int:
    return secrets.randbits(63)


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
        eos_token_ids: tuple[int, ...],
        token_bytes: Sequence[bytes],
        grammar_manager: GrammarManager[RequestGroup] | None = None,
        drafter: Drafter | None = None,
        draw_seed: Callable[[], int] = random_seed,
    ) -> None:
        self.planner = Planner(config, KvPool(ready.kv_cache_tokens // page_size, page_size), self._propose)
        self.counters = LoopCounters()
        self._config = config
        self._executor = executor
        self._connection = connection
        self._outbox = Outbox(connection)
        self.ready = ready
        self._limits = ServingLimits(
            ready.context_length, ready.kv_cache_tokens // page_size * page_size, ready.vocab_size, eos_token_ids
        )
        self._token_bytes = token_bytes
        self._grammar_manager = grammar_manager
        self._drafter = drafter
        self._draw_seed = draw_seed
        self._groups: dict[tuple[bytes, str], RequestGroup] = {}
        self._grammar_queue: dict[str, RequestGroup] = {}
        self._launched: deque[StepPlan] = deque()
        self._removed: deque[list[Request]] = deque()
        self._num_arrived = 0
        self._num_stalls = 0
        self._is_draining = False

    @property
    def has_work(self) -> bool:
        return bool(self.planner.running or self.planner.waiting or self._launched)

    def run_forever(self) -> None:
        """Returns once :meth:`drain` was called and every request is over."""
        while not self._is_draining or self.has_work or self._grammar_queue:
            self.receive(0 if self.has_work else None)
            self.step()

    def drain(self) -> None:
        """Refuse new requests and finish those that are there."""
        self._is_draining = True

    def receive(self, timeout: float | None) -> None:
        """Take in messages and ready grammars; see :meth:`Connection.receive` for ``timeout``."""
        for client, message in self._connection.receive(timeout):
            self._handle(client, message)
        if self._grammar_manager is not None:
            for group in self._grammar_manager.get_ready_grammar_requests():
                if self._grammar_queue.pop(group.message.request_id, None) is group:
                    self._grammar_is_ready(group)
        self._drop_vanished()

    def step(self) -> None:
        """Launch the next step; read the results of the oldest one if it is due."""
        plan = self.planner.plan()
        if plan is not None:
            self._executor.launch(plan)
            self._launched.append(plan)
            self._removed.append([])
            self.counters.steps += 1
        if self._launched and (plan is None or len(self._launched) > self._executor.max_in_flight):
            self._collect()
        elif plan is None:
            self._check_stall()
        self._outbox.flush()
        self._drop_vanished()

    def _collect(self) -> None:
        result = self._executor.collect()
        plan = self._launched.popleft()
        removed = self._removed.popleft()
        self._num_stalls = 0
        # Page references of requests that end now go back with the newest launched step that may use them.
        self.planner.step_collected()
        for row, row_result in zip(plan.rows, result.rows, strict=True):
            self._apply(row, row_result)
        for request in removed:
            self._executor.remove(request)

    def _apply(self, row: PlanRow, result: RowResult) -> None:
        request = row.request
        if request.status is Status.FINISHED:
            return
        num_computed = acceptance.settle(row, result)
        if result.error is not None:
            self._fail(request.group, result.error)
            return
        before = request.num_output
        try:
            finish = acceptance.accept(request, result, self._token_bytes)
        except RowError as error:
            self._fail(request.group, error.message)
            return
        self.counters.generated_tokens += request.num_output - before
        self.counters.draft_tokens_proposed += len(row.draft_token_ids)
        self.counters.draft_tokens_accepted += max(0, len(result.token_ids) - 1)
        self.planner.cache_computed(request, min(num_computed, len(request.token_ids)))
        self._score_prompt(row, result)
        if finish is None and acceptance.is_scored(request, row):
            finish = acceptance.end(request, "length")
        if finish is not None:
            self._finish(request, finish)
        self._outbox.add(request)

    def _score_prompt(self, row: PlanRow, result: RowResult) -> None:
        group = row.request.group
        if row.request.choice_index or group.sampling.prompt_logprobs is None:
            return
        acceptance.score_prompt(group, row, result.prompt_logprobs)
        if not group.prompt_logprobs_sent and len(group.prompt_logprobs) == row.request.prompt_length - 1:
            group.prompt_logprobs_sent = True
            logprobs = PromptLogprobs(request_id=group.request_id, logprobs=[None, *group.prompt_logprobs])
            self._connection.send(group.client, logprobs)

    def _finish(self, request: Request, finish: Finish) -> None:
        request.finish = finish
        self._remove(request)
        group = request.group
        group.num_unfinished -= 1
        if not group.num_unfinished:
            self._groups.pop((group.client, group.request_id), None)

    def _remove(self, request: Request) -> None:
        """Free the place and the pages; the sampling state goes once no launched step refers to it."""
        self.planner.remove(request)
        if request.grammar is not None:
            request.grammar.finished = True
        if self._removed:
            self._removed[-1].append(request)
        else:
            self._executor.remove(request)

    def _fail(self, group: RequestGroup, message: str) -> None:
        logger.error("request %s failed: %s", group.request_id, message)
        self._end_unfinished(group)
        error = ErrorInfo(status=500, type="server_error", message=message)
        self._connection.send(group.client, Failed(request_id=group.request_id, error=error))

    def _end_unfinished(self, group: RequestGroup) -> list[Request]:
        ended = [request for request in group.choices if request.status is not Status.FINISHED]
        for request in ended:
            self._remove(request)
        group.num_unfinished = 0
        self._groups.pop((group.client, group.request_id), None)
        return ended

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
            self._generate(client, message)
        elif isinstance(message, AbortRequest):
            group = self._groups.get((client, message.request_id))
            if group is not None:
                self._abort(group)
        elif isinstance(message, Hello):
            # The process has started or lost its connection: nobody waits for what it asked before.
            self._abort_client(client)
            self._connection.send(client, self.ready)
        elif isinstance(message, FlushCache):
            freed = self.planner.cache.evict(self.planner.pool.num_pages)
            freed_tokens = freed * self.planner.pool.page_size
            self._connection.send(client, CacheFlushed(call_id=message.call_id, freed_tokens=freed_tokens))
        elif isinstance(message, GetStats):
            self._connection.send(client, self.stats(message.call_id))

    def _generate(self, client: bytes, message: GenerateRequest) -> None:
        error = self._refusal(client, message)
        if error is not None:
            self._connection.send(client, Rejected(request_id=message.request_id, error=error))
            return
        seed = message.sampling.seed
        group = make_group(
            client,
            message,
            seed=self._draw_seed() if seed is None else seed,
            eos_token_ids=self._limits.eos_token_ids,
            max_total_tokens=self._limits.max_total_tokens,
        )
        self._groups[client, message.request_id] = group
        if message.grammar is None or self._grammar_manager is None:
            self._queue(group)
        elif self._grammar_manager.process_req_with_grammar(group):
            self._grammar_queue[message.request_id] = group
        else:
            self._grammar_is_ready(group)

    def _refusal(self, client: bytes, message: GenerateRequest) -> ErrorInfo | None:
        if self._is_draining:
            return ErrorInfo(status=503, type="server_error", message="The server is shutting down.")
        if (client, message.request_id) in self._groups:
            return ErrorInfo(status=400, message=f"The request id {message.request_id!r} is in use.")
        error = admission.check_request(message, self._limits, serves_grammars=self._grammar_manager is not None)
        if error is not None:
            return error
        free_places = max(0, self._config.effective_max_running_requests - len(self.planner.running))
        if self._num_waiting_groups() >= self._config.max_queued_requests + free_places:
            return admission.queue_is_full(self._config.max_queued_requests)
        return None

    def _num_waiting_groups(self) -> int:
        return sum(not group.is_running for group in self._groups.values())

    def _grammar_is_ready(self, group: RequestGroup) -> None:
        if group.grammar is None:
            # Fail closed: without a grammar object there is no answer.
            self._groups.pop((group.client, group.request_id), None)
            error = _grammar_error(group.grammar_error)
            self._connection.send(group.client, Rejected(request_id=group.request_id, error=error))
            return
        self._queue(group)

    def _queue(self, group: RequestGroup) -> None:
        for request in make_choices(group, self._num_arrived, may_draft=self._drafter is not None):
            self._executor.add(request)
            self.planner.add(request)
        self._num_arrived += len(group.choices)
        self._connection.send(group.client, Admitted(request_id=group.request_id))

    def _abort(self, group: RequestGroup) -> None:
        self.counters.aborted_requests += 1
        if self._grammar_queue.pop(group.request_id, None) is not None and self._grammar_manager is not None:
            self._grammar_manager.abort_requests([group.request_id])
            self._groups.pop((group.client, group.request_id), None)
            error = ErrorInfo(status=400, message="The request was aborted.", code="aborted")
            self._connection.send(group.client, Rejected(request_id=group.request_id, error=error))
            return
        for request in self._end_unfinished(group):
            request.finish = acceptance.end(request, "abort")
            self._outbox.add(request)

    def _abort_client(self, client: bytes) -> None:
        for group in [group for group in self._groups.values() if group.client == client]:
            self._abort(group)
        self._outbox.discard(client)

    def _drop_vanished(self) -> None:
        while vanished := self._connection.vanished_clients():
            for client in vanished:
                self._abort_client(client)

    def _propose(self, request: Request, max_tokens: int) -> tuple[int, ...]:
        """The drafter's guess up to the first id that could not be verified."""
        if self._drafter is None:
            return ()
        drafts: list[int] = []
        for token_id in self._drafter.propose(request, min(max_tokens, self._config.max_draft_tokens)):
            if not 0 <= token_id < self._limits.vocab_size:
                break
            drafts.append(token_id)
        return tuple(drafts)

    def stats(self, call_id: int) -> SchedulerStats:
        pool = self.planner.pool
        return SchedulerStats(
            call_id=call_id,
            running_requests=len(self.planner.running),
            waiting_requests=len(self.planner.waiting),
            grammar_queue_requests=len(self._grammar_queue),
            kv_tokens_used=pool.num_referenced * pool.page_size,
            kv_tokens_cached=pool.num_idle * pool.page_size,
            kv_tokens_capacity=pool.num_pages * pool.page_size,
            prompt_tokens_total=self.planner.counters.prompt_tokens,
            cached_tokens_total=self.planner.counters.cached_tokens,
            generated_tokens_total=self.counters.generated_tokens,
            preemptions_total=self.planner.counters.preemptions,
            steps_total=self.counters.steps,
            requests_aborted_total=self.counters.aborted_requests,
            counters={
                "refused_frames_total": self._connection.num_refused_frames,
                "draft_tokens_proposed_total": self.counters.draft_tokens_proposed,
                "draft_tokens_accepted_total": self.counters.draft_tokens_accepted,
                **(self._grammar_manager.metrics.snapshot() if self._grammar_manager is not None else {}),
            },
        )


def _grammar_error(message: str | None) -> ErrorInfo:
    if message is None:
        return ErrorInfo(status=500, type="server_error", message="The grammar could not be compiled.")
    return ErrorInfo(status=400, message=message, param="response_format")

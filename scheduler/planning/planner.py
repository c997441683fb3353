"""What each step computes: running requests first, then those that wait, under one token budget.

Planning reads request order, ids and its own step number, never a clock or a memory reading, so that many ranks with
the same inputs plan the same steps.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scheduler.config import SchedulerConfig
from scheduler.memory.kv_pool import KvPool
from scheduler.memory.prefix_cache import CacheNode, PrefixCache
from scheduler.planning.plan import PlanRow, StepPlan
from scheduler.planning.waiting_queue import WaitingQueue, seniority
from scheduler.requests.request import Request, Status

Propose = Callable[[Request, int], tuple[int, ...]]
"""Draft tokens for a request, at most that many; none is always right."""
PrepareDrafts = Callable[[Sequence[Request]], None]
"""Told before a step which requests it may ask drafts for."""


@dataclass(slots=True)
class PlannerCounters:
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True)
class _Batch:
    budget: int
    rows: list[PlanRow] = field(default_factory=list)


class Planner:
    """Owns the running and waiting requests, the page pool and the prefix cache."""

    def __init__(
        self,
        config: SchedulerConfig,
        pool: KvPool,
        propose: Propose | None = None,
        prepare_drafts: PrepareDrafts | None = None,
        row_tile: int = 1,
    ) -> None:
        self.pool = pool
        self.cache = PrefixCache(pool)
        self.running: list[Request] = []
        """Most senior first."""
        self.waiting = WaitingQueue(config.policy)
        self.counters = PlannerCounters()
        self._max_running = config.effective_max_running_requests
        self._max_batch_tokens = config.max_batch_tokens
        self._uses_cache = config.prefix_cache
        self._propose = propose
        self._prepare_drafts = prepare_drafts
        self._row_tile = row_tile
        """Tokens that the model computes at the price of one: drafts fill such a tile up and never begin another."""
        self._step = 0

    @property
    def num_free_places(self) -> int:
        return self._max_running - len(self.running)

    def plan(self) -> StepPlan | None:
        """The next step, launched from now on as far as request state goes; ``None`` when there is nothing to run.

        The caller launches it, and calls :meth:`step_collected` when its results have been applied.
        """
        batch = _Batch(self._max_batch_tokens)
        self._plan_decodes(batch)
        for request in self.running:
            if batch.budget and request.num_uncomputed > 1:
                self._add_chunk(batch, request)
        self._admit(batch)
        if not batch.rows:
            return None
        self._step += 1
        for index, row in enumerate(batch.rows):
            if row.samples:
                row.request.pending_row = index
        self.pool.step_launched()
        return StepPlan(self._step, tuple(batch.rows))

    def step_collected(self) -> None:
        self.pool.step_collected()

    def add(self, request: Request) -> None:
        self.waiting.add(request)

    def remove(self, request: Request) -> None:
        """The request is over: its place and, once no launched step refers to them, its pages are free."""
        if request.status is Status.RUNNING:
            self.running.remove(request)
            self._give_pages_back(request)
        else:
            self.waiting.remove(request)
        request.status = Status.FINISHED

    def cache_computed(self, request: Request, num_tokens: int) -> None:
        """Enter the whole pages of the first ``num_tokens`` tokens, all accepted and computed, in the prefix cache."""
        if not self._uses_cache or request.cache_node is None:
            return
        size = self.pool.page_size
        node = request.cache_node
        while (node.depth + 1) * size <= num_tokens:
            index = node.depth
            page = request.block_table[index]
            node = self.cache.insert(node, tuple(request.token_ids[index * size : (index + 1) * size]), page)
            if node.page != page:
                # Someone else computed the same tokens: keep one copy. Launched steps may still use this one.
                request.block_table[index] = self.cache.share(node)
                self.pool.release([page])
        request.cache_node = node

    def _plan_decodes(self, batch: _Batch) -> None:
        decodes = [request for request in self.running if request.num_uncomputed == 1]
        self._announce_drafts(decodes)
        for planned, request in enumerate(decodes):
            if not batch.budget:
                return
            if request.status is not Status.RUNNING or not _may_decode(request):
                continue
            if not self._reserve(request, request.num_computed + 1):
                continue
            self._add_decode(batch, request, self._room_for_drafts(batch, len(decodes) - planned))

    def _announce_drafts(self, decodes: Sequence[Request]) -> None:
        if self._prepare_drafts is not None:
            drafting = [request for request in decodes if request.may_draft and not request.num_in_flight]
            if drafting:
                self._prepare_drafts(drafting)

    def _add_decode(self, batch: _Batch, request: Request, max_drafts: int) -> None:
        drafts: tuple[int, ...] = ()
        if request.may_draft and self._propose is not None and not request.num_in_flight:
            drafts = self._draft(request, max_drafts)
        is_pending = request.num_in_flight > 0
        start = request.num_computed
        batch.rows.append(
            PlanRow(
                request=request,
                token_ids=(0,) if is_pending else (request.token_ids[start], *drafts),
                start=start,
                block_table=request.block_table,
                samples=True,
                output_position=request.num_output + request.num_in_flight,
                draft_token_ids=drafts,
                pending_row=request.pending_row if is_pending else None,
                residency=request.residency,
            )
        )
        batch.budget -= 1 + len(drafts)
        request.num_computed += 1 + len(drafts)
        request.num_in_flight += 1
        request.draft_token_ids = drafts

    def _room_for_drafts(self, batch: _Batch, num_tokens: int) -> int:
        """Most drafts beside what the batch holds and ``num_tokens`` tokens more."""
        room = batch.budget - num_tokens
        if self._row_tile > 1:
            planned = self._max_batch_tokens - room
            room = min(room, -planned % self._row_tile)
        return room

    def _draft(self, request: Request, max_drafts: int) -> tuple[int, ...]:
        """Drafts never cost another request its pages, and never reach past the last token that may be drawn."""
        room = (len(request.block_table) + self.pool.num_available) * self.pool.page_size
        most = min(max_drafts, request.num_drawable - 1, room - len(request.token_ids))
        if most <= 0 or self._propose is None:
            return ()
        drafts = self._propose(request, most)[:most]
        if drafts:
            self._extend(request, self.pool.num_pages_for(len(request.token_ids) + len(drafts)))
        return drafts

    def _add_chunk(self, batch: _Batch, request: Request) -> None:
        start = request.num_computed
        end = min(len(request.token_ids), start + batch.budget)
        is_last = end == len(request.token_ids)
        samples = is_last and request.num_drawable > 0
        scored = len(request.group.prompt_logprobs)
        score_from: int | None = None
        if request.scores_prompt:
            # The logits at position p are those of token p + 1; the prompt's first token has none.
            score_from = max(start, scored)
            if score_from >= min(end, request.prompt_length - 1):
                score_from = None
        drafts: tuple[int, ...] = ()
        is_tile_free = self._row_tile == 1 or not batch.rows
        if samples and score_from is None and request.may_draft and is_tile_free:
            # What a grammar forces first, or a client predicts, need not wait for the first token.
            drafts = self._draft(request, self._room_for_drafts(batch, end - start))
        batch.rows.append(
            PlanRow(
                request=request,
                token_ids=[*request.token_ids[start:end], *drafts],
                start=start,
                block_table=request.block_table,
                samples=samples,
                output_position=request.num_output,
                draft_token_ids=drafts,
                score_from=score_from,
                residency=request.residency,
            )
        )
        batch.budget -= end - start + len(drafts)
        request.num_computed = end + len(drafts)
        request.num_in_flight += samples
        request.draft_token_ids = drafts

    def _admit(self, batch: _Batch) -> None:
        if not batch.budget or not self.waiting or len(self.running) >= self._max_running:
            return
        for request in self.waiting.candidates(self._matched_pages):
            if not batch.budget or len(self.running) >= self._max_running:
                return
            if self._must_wait(request):
                continue
            if not self._give_place(request):
                return
            self._add_chunk(batch, request)

    def _must_wait(self, request: Request) -> bool:
        if request.num_in_flight:
            # Preempted while a step draws its next token: that one must be known first.
            return True
        if request.choice_index and request.group.choices[0].scores_prompt:
            # The prompt's log-probabilities come before any choice's output.
            return True
        return self._is_being_computed(request)

    def _give_place(self, request: Request) -> bool:
        """Pages for every token the request knows, so that its prefill is never cut short by another's."""
        node = self._match(request)
        needed = self.pool.num_pages_for(len(request.token_ids)) - node.depth
        # One page for the next token of each running request, or this one would soon be preempted.
        reserve = len(self.running)
        if needed + reserve > self.pool.num_available - self.cache.num_idle_to(node):
            return False
        self.waiting.admitted(request)
        pages = self.cache.acquire(node)
        insort(self.running, request, key=seniority)
        request.status = Status.RUNNING
        request.block_table = pages
        request.cache_node = node
        request.match_node = None
        request.num_computed = node.depth * self.pool.page_size
        self._extend(request, len(pages) + needed)
        self._count_admission(request)
        return True

    def _count_admission(self, request: Request) -> None:
        group = request.group
        if group.cached_tokens is None:
            group.cached_tokens = request.num_computed
            self.counters.prompt_tokens += request.prompt_length
            self.counters.cached_tokens += request.num_computed

    def _is_being_computed(self, request: Request) -> bool:
        """Whether the next page behind the cached prefix is one that a running request is about to put there."""
        if not self._uses_cache or request.scores_prompt:
            return False
        node = self._match(request)
        size = self.pool.page_size
        begin, end = node.depth * size, (node.depth + 1) * size
        if end >= len(request.token_ids):
            return False
        for other in self.running:
            if (
                other.cache_node is node
                and end <= len(other.token_ids)
                and other.token_ids[begin:end] == request.token_ids[begin:end]
            ):
                return True
        return False

    def _match(self, request: Request) -> CacheNode:
        if not self._uses_cache or request.scores_prompt:
            return self.cache.root
        # The last token is computed in any case: its logits are needed.
        most = (len(request.token_ids) - 1) // self.pool.page_size
        request.match_node = self.cache.match(request.token_ids, most, request.match_node)
        return request.match_node

    def _matched_pages(self, request: Request) -> int:
        return self._match(request).depth

    def _reserve(self, request: Request, num_tokens: int) -> bool:
        """Pages for ``num_tokens`` tokens, the youngest requests' if need be; False: not in this step."""
        num_pages = self.pool.num_pages_for(num_tokens)
        while num_pages - len(request.block_table) > self.pool.num_available:
            if self.pool.num_retiring:
                return False
            victim = self.running[-1]
            if victim is request and len(self.running) == 1:
                raise RuntimeError("a request that runs alone is out of pages: admission let it in wrongly")
            self._preempt(victim)
            if victim is request:
                return False
        self._extend(request, num_pages)
        return True

    def _extend(self, request: Request, num_pages: int) -> None:
        missing = num_pages - len(request.block_table)
        if missing > self.pool.num_free:
            self.cache.evict(missing - self.pool.num_free)
        if missing > 0:
            request.block_table += self.pool.take(missing)

    def _preempt(self, request: Request) -> None:
        self.counters.preemptions += 1
        self.running.remove(request)
        self._give_pages_back(request)
        request.status = Status.WAITING
        self.waiting.add(request)

    def _give_pages_back(self, request: Request) -> None:
        self.pool.release(request.block_table)
        request.block_table = []
        request.cache_node = None
        request.match_node = None
        request.num_computed = 0
        request.residency += 1


def _may_decode(request: Request) -> bool:
    if request.num_drawable <= 0:
        return False
    if request.num_in_flight:
        return request.runs_ahead and not request.draft_token_ids
    return True

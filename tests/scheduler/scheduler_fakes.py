"""Fakes with real behaviour: a deterministic model, executors of both kinds, a connection, a grammar, a drafter."""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from constrained.environment import GrammarEnvironment
from constrained.errors import GrammarError, TokenRejectedError
from constrained.stats import GrammarMetrics
from constrained.vocabulary import Vocabulary
from sampling.params import SamplingParams
from scheduler.config import SchedulerConfig
from scheduler.connection import Events
from scheduler.loop import Scheduler
from scheduler.messages import (
    AbortRequest,
    Admitted,
    ChoiceOutput,
    DrafterStats,
    Failed,
    FromScheduler,
    GenerateRequest,
    PromptLogprobs,
    Rejected,
    SchedulerReady,
    StepOutput,
    TokenLogprob,
    ToScheduler,
)
from scheduler.planning.plan import PlanRow, RowResult, StepPlan, StepResult
from scheduler.requests.request import Request

VOCAB_SIZE = 97
EOS = 96
PAGE_SIZE = 4
CONTEXT = 256
CLIENT = b"client"
TOKEN_BYTES = [bytes([97 + i % 4]) * (1 + i % 3) for i in range(VOCAB_SIZE - 1)] + [b""]


def next_token(tokens: Sequence[int], salt: int) -> int:
    """The fake model: a hash of all tokens so far and of the choice."""
    return zlib.crc32(repr((list(tokens), salt)).encode()) % VOCAB_SIZE


def salt_of(request: Request) -> int:
    return request.group.seed * 1000 + request.choice_index


class DigitsGrammar:
    """Accepts ids below ``limit``, exactly ``length`` of them; then it is terminated."""

    environment = GrammarEnvironment(Vocabulary(tuple(TOKEN_BYTES), frozenset({EOS})), VOCAB_SIZE, (EOS,))
    grammar_stats = None

    def __init__(self, limit: int = 50, length: int = 5, accepted: Sequence[int] = ()) -> None:
        self.limit, self.length, self.accepted = limit, length, list(accepted)

    def accept_token(self, token_id: int) -> None:
        if self.is_terminated() or token_id >= self.limit:
            raise TokenRejectedError(f"{token_id} is not legal here")
        self.accepted.append(token_id)

    def rollback(self, k: int) -> None:
        if k:
            del self.accepted[-k:]

    def is_terminated(self) -> bool:
        return len(self.accepted) >= self.length

    def copy(self) -> DigitsGrammar:
        return DigitsGrammar(self.limit, self.length)

    def fork(self) -> DigitsGrammar:
        return DigitsGrammar(self.limit, self.length, self.accepted)

    def maybe_init_reasoning(self, reasoning: bool) -> None:
        pass

    def active_grammar(self) -> DigitsGrammar:
        return self

    def choose(self, token_id: int) -> int:
        """What the masked draw gives where the free draw gives ``token_id``."""
        return token_id % self.limit

    def fill_vocab_mask(self, vocab_mask: torch.Tensor, idx: int) -> None:
        allowed = np.zeros(vocab_mask.shape[1] * 32, dtype=np.uint8)
        allowed[: self.limit] = not self.is_terminated()
        vocab_mask[idx] = torch.from_numpy(np.packbits(allowed, bitorder="little").view(np.int32))


def reference(
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    choice_index: int = 0,
    max_total: int = CONTEXT,
    grammar: DigitsGrammar | None = None,
) -> list[int]:
    """What a request gives when it runs alone, one token after the other."""
    salt = (params.seed or 0) * 1000 + choice_index
    tokens = list(prompt)
    grammar = grammar.copy() if grammar is not None else None
    while len(tokens) - len(prompt) < params.max_tokens and len(tokens) < max_total:
        token = next_token(tokens, salt)
        if grammar is not None:
            token = grammar.choose(token)
            grammar.accept_token(token)
        tokens.append(token)
        if grammar is not None and grammar.is_terminated():
            break
        stops = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
        if token in stops and len(tokens) - len(prompt) >= params.min_tokens:
            break
    return tokens[len(prompt) :]


class FakeExecutor:
    """Keeps real KV contents: every page slot remembers the token written there, and drawing reads them back.

    A page that is used while another request's tokens are in it therefore gives wrong output, and is also detected
    here at once. With ``max_in_flight`` 1, results come one step late and a pending token is resolved "on the device".
    """

    def __init__(self, max_in_flight: int = 0) -> None:
        self.max_in_flight = max_in_flight
        self.kv: dict[tuple[int, int], int] = {}
        self.live: set[int] = set()
        self.plans: list[StepPlan] = []
        self.computed_tokens = 0
        self.fail_next: set[str] = set()
        self._previous: list[int | None] = []
        self._results: deque[StepResult] = deque()
        self._pages_in_use: deque[dict[int, set[int]]] = deque()
        """For each step launched and not collected, the pages of its rows by request."""

    def add(self, request: Request) -> None:
        assert request.key not in self.live
        self.live.add(request.key)

    def remove(self, request: Request) -> None:
        self.live.remove(request.key)
        assert all(request.key not in pages for pages in self._pages_in_use), "removed while a step refers to it"

    def launch(self, plan: StepPlan) -> None:
        assert len(self._results) <= self.max_in_flight
        self._check_written_pages(plan)
        self._pages_in_use.append({row.request.key: set(row.block_table) for row in plan.rows})
        self.plans.append(plan)
        results = []
        drawn: list[int | None] = []
        for row in plan.rows:
            result = self._run(row)
            results.append(result)
            drawn.append(result.token_ids[-1] if result.token_ids else None)
        self._previous = drawn
        self._results.append(StepResult(results))

    def collect(self) -> StepResult:
        self._pages_in_use.popleft()
        return self._results.popleft()

    def _check_written_pages(self, plan: StepPlan) -> None:
        """A page is written by one request alone, and only when no launched step of another refers to it."""
        tables = {row.request.key: set(row.block_table) for row in plan.rows}
        for row in plan.rows:
            written = set(row.block_table[row.start // PAGE_SIZE : (row.end - 1) // PAGE_SIZE + 1])
            for in_use in (*self._pages_in_use, tables):
                for key, pages in in_use.items():
                    assert key == row.request.key or not written & pages, "a page of another request is written"

    def _run(self, row: PlanRow) -> RowResult:
        request = row.request
        assert request.key in self.live
        tokens = list(row.token_ids)
        if row.pending_row is not None:
            pending = self._previous[row.pending_row]
            assert pending is not None
            tokens[-1] = pending
        assert len(row.block_table) * PAGE_SIZE >= row.end
        self.computed_tokens += len(tokens)
        for position, token in enumerate(tokens, row.start):
            self.kv[row.block_table[position // PAGE_SIZE], position % PAGE_SIZE] = token
        context = [self.kv[row.block_table[p // PAGE_SIZE], p % PAGE_SIZE] for p in range(row.end)]
        known = request.token_ids[: row.end]
        assert context[: len(known)] == known, "a page holds another request's tokens"
        result = RowResult()
        if row.score_from is not None:
            last = min(row.end, request.prompt_length - 1)
            result.prompt_logprobs = [fake_logprob(request.token_ids[p + 1]) for p in range(row.score_from, last)]
        if row.samples:
            base = len(context) - len(row.draft_token_ids)
            result.token_ids = self._verify(request, context[:base], row.draft_token_ids)
            if request.sampling.logprobs is not None:
                result.logprobs = [fake_logprob(token) for token in result.token_ids]
        if request.group.message.request_id in self.fail_next:
            result.error = "a NaN was drawn"
        return result

    def _verify(self, request: Request, context: list[int], drafts: Sequence[int]) -> list[int]:
        drawn: list[int] = []
        grammar = request.grammar.fork() if isinstance(request.grammar, DigitsGrammar) else None
        for draft in (*drafts, None):
            token = next_token(context, salt_of(request))
            if grammar is not None:
                token = grammar.choose(token)
            drawn.append(token)
            if token != draft:
                break
            context = [*context, token]
            if grammar is not None:
                grammar.accept_token(token)
                if grammar.is_terminated():
                    break
        return drawn


def fake_logprob(token: int) -> TokenLogprob:
    return TokenLogprob(token_id=token, logprob=-float(token), top=[])


class AnyDrafter:
    """A drafter for every request that learns nothing."""

    def may_draft(self, request: Request) -> bool:
        return True

    def prepare(self, requests: Sequence[Request]) -> None:
        pass

    def verified(self, request: Request, num_proposed: int, num_accepted: int) -> None:
        assert 0 <= num_accepted <= num_proposed

    def remove(self, request: Request) -> None:
        pass

    def stats(self) -> dict[str, DrafterStats]:
        return {}


class RandomDrafter(AnyDrafter):
    """Now and then guesses right, mostly wrong, sometimes beyond the vocabulary or too long."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        drafts: list[int] = []
        tokens = list(request.token_ids)
        grammar = request.grammar.fork() if isinstance(request.grammar, DigitsGrammar) else None
        for _ in range(self.random.randrange(max_tokens + 3)):
            token = next_token(tokens, salt_of(request))
            token = grammar.choose(token) if grammar is not None else token
            if self.random.random() < 0.3:
                token = self.random.choice([0, EOS, VOCAB_SIZE, VOCAB_SIZE + 5, -1])
            drafts.append(token)
            tokens.append(token)
        return drafts


class FakeGrammarManager:
    """Compiles when told to."""

    def __init__(self) -> None:
        self.metrics = GrammarMetrics()
        self.waiting: list[object] = []
        self.ready: list[object] = []
        self.aborted: list[str] = []
        self.num_flushes = 0
        self.steps_while_waiting = 0

    def flush(self) -> None:
        self.num_flushes += 1

    def note_step(self) -> None:
        self.steps_while_waiting += bool(self.waiting)

    def process_req_with_grammar(self, req: object) -> bool:
        self.waiting.append(req)
        return True

    def finish(self, grammar: DigitsGrammar | None = None, error: GrammarError | None = None) -> None:
        for req in self.waiting:
            req.grammar = grammar  # type: ignore[attr-defined]
            req.grammar_error = error  # type: ignore[attr-defined]
        self.ready += self.waiting
        self.waiting = []

    def get_ready_grammar_requests(self) -> list[object]:
        ready, self.ready = self.ready, []
        return ready

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self.aborted += request_ids
        self.waiting = [req for req in self.waiting if req.request_id not in request_ids]  # type: ignore[attr-defined]
        self.ready = [req for req in self.ready if req.request_id not in request_ids]  # type: ignore[attr-defined]

    def waits_for_another_rank(self) -> bool:
        return False

    def fileno(self) -> int:
        raise AssertionError("the fake connection polls nothing")


class FakeConnection:
    def __init__(self) -> None:
        self.incoming: list[tuple[bytes, ToScheduler]] = []
        self.sent: list[tuple[bytes, FromScheduler]] = []
        self.vanished: list[bytes] = []
        self.num_refused_frames = 0

    def receive(self, timeout: float | None) -> Events:
        events = Events(vanished=self.vanished, messages=self.incoming)
        self.vanished, self.incoming = [], []
        return events

    def send(self, client: bytes, message: FromScheduler) -> None:
        self.sent.append((client, message))

    def broadcast(self, message: FromScheduler) -> None:
        self.sent.append((b"everyone", message))

    def close(self) -> None:
        pass


class Harness:
    """A scheduler on fakes, and what its clients have heard."""

    def __init__(
        self,
        max_in_flight: int,
        *,
        num_pages: int = 64,
        drafter: object = None,
        grammar_manager: object = None,
        executor: object = None,
        **config: object,
    ) -> None:
        self.executor: FakeExecutor = executor or FakeExecutor(max_in_flight)  # type: ignore[assignment]
        self.connection = FakeConnection()
        self.scheduler = Scheduler(
            SchedulerConfig(endpoint="", **config),  # type: ignore[arg-type]
            self.executor,
            self.connection,
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
            grammar_manager=grammar_manager,  # type: ignore[arg-type]
            drafter=drafter,  # type: ignore[arg-type]
        )

    @property
    def planner(self):  # type: ignore[no-untyped-def]
        return self.scheduler.planner

    def submit(
        self,
        request_id: str,
        prompt: Sequence[int],
        *,
        client: bytes = CLIENT,
        priority: int = 0,
        stream: bool = True,
        grammar: object = None,
        grammar_field: str = "response_format",
        **sampling: object,
    ) -> SamplingParams:
        params = SamplingParams(**{"max_tokens": 8, "seed": 0, "ignore_eos": True, **sampling})  # type: ignore[arg-type]
        message = GenerateRequest(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            sampling=params,
            priority=priority,
            stream=stream,
            grammar=grammar,  # type: ignore[arg-type]
            grammar_field=grammar_field,
        )
        self.connection.incoming.append((client, message))
        return params

    def abort(self, request_id: str, client: bytes = CLIENT) -> None:
        self.connection.incoming.append((client, AbortRequest(request_id=request_id)))

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.scheduler.receive(0)
            self.scheduler.step()
            self.check_pool()

    def run(self, most: int = 5000) -> None:
        for _ in range(most):
            self.step()
            if not self.scheduler.has_work:
                return
        raise AssertionError(f"requests are still unfinished after {most} steps")

    def check_pool(self) -> None:
        """Every page is free, or referenced by exactly the holders there are, or idle in the tree."""
        pool, cache = self.planner.pool, self.planner.cache
        expected = [0] * pool.num_pages
        for request in self.planner.running:
            assert len(set(request.block_table)) == len(request.block_table)
            for page in request.block_table:
                expected[page] += 1
        for pages in pool._retiring:
            for page in pages:
                expected[page] += 1
        assert [pool.references(page) for page in range(pool.num_pages)] == expected
        free = set(pool._free)
        assert len(free) == len(pool._free)
        idle = 0
        for page in range(pool.num_pages):
            assert (page in free) == (expected[page] == 0 and not pool.is_cached(page))
            assert (page in cache._nodes) == pool.is_cached(page)
            idle += expected[page] == 0 and pool.is_cached(page)
        assert idle == pool.num_idle

    def check_nothing_leaked(self) -> None:
        pool = self.planner.pool
        assert not self.planner.running
        assert not self.planner.waiting
        assert pool.num_referenced == 0
        assert not self.executor.live
        assert not self.scheduler._live
        self.planner.cache.evict(pool.num_pages)
        assert pool.num_free == pool.num_pages

    def messages(self, kind: type) -> list[FromScheduler]:
        return [message for _, message in self.connection.sent if isinstance(message, kind)]

    def outputs(self, request_id: str, choice_index: int = 0) -> list[ChoiceOutput]:
        return [
            output
            for message in self.messages(StepOutput)
            for output in message.outputs  # type: ignore[union-attr]
            if output.request_id == request_id and output.choice_index == choice_index
        ]

    def tokens(self, request_id: str, choice_index: int = 0) -> list[int]:
        return [token for output in self.outputs(request_id, choice_index) for token in output.token_ids]

    def finish(self, request_id: str, choice_index: int = 0):  # type: ignore[no-untyped-def]
        finishes = [output.finish for output in self.outputs(request_id, choice_index) if output.finish is not None]
        assert len(finishes) == 1, finishes
        return finishes[0]

    def rejection(self, request_id: str):  # type: ignore[no-untyped-def]
        return next(m.error for m in self.messages(Rejected) if m.request_id == request_id)  # type: ignore[union-attr]

    def failure(self, request_id: str):  # type: ignore[no-untyped-def]
        return next(m.error for m in self.messages(Failed) if m.request_id == request_id)  # type: ignore[union-attr]

    def admitted(self) -> list[str]:
        return [message.request_id for message in self.messages(Admitted)]  # type: ignore[union-attr]

    def prompt_logprobs(self, request_id: str):  # type: ignore[no-untyped-def]
        return [m.logprobs for m in self.messages(PromptLogprobs) if m.request_id == request_id]  # type: ignore[union-attr]

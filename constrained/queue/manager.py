"""The grammar queue: requests wait here, off the batch, until their grammar is ready or has failed."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from constrained.compile.failures import timed_out
from constrained.compile.service import Compiler
from constrained.engines.base import BaseGrammarBackend, BaseGrammarObject, InvalidGrammarObject, create_grammar_backend
from constrained.environment import GrammarEnvironment
from constrained.errors import (
    GrammarError,
    GrammarServiceUnavailableError,
    InvalidGrammarError,
    NothingBeginsError,
    reraise_exit,
    unforeseen,
)
from constrained.queue.alarm import Alarm
from constrained.queue.ranks import AllGather, Verdict, agree
from constrained.spec import GrammarSpec, ReasoningSpec
from constrained.stats import GrammarMetrics
from constrained.thinking.budget import ThinkingBudget


class GrammarRequest(Protocol):
    """What the manager reads of a request, and what it sets: ``grammar``, or ``grammar_error``."""

    @property
    def request_id(self) -> str: ...

    @property
    def grammar_spec(self) -> GrammarSpec | None: ...

    @property
    def reasoning(self) -> ReasoningSpec | None: ...

    @property
    def stop_ids(self) -> Collection[int]:
        """Ids that end an answer of this request; a grammar adds the model's end-of-text ids."""

    grammar: Any
    """A :class:`BaseGrammarObject` in its start state; every choice takes a copy."""
    grammar_error: GrammarError | None
    """For the client; its ``status`` says whose fault it is."""


RequestT = TypeVar("RequestT", bound=GrammarRequest)


@dataclass(eq=False)
class _Waiting(Generic[RequestT]):
    request: RequestT
    future: Future[BaseGrammarObject]
    queued_at: float
    deadline: float


class GrammarManager(Generic[RequestT]):
    """Owned by the scheduler's loop and used by its thread alone.

    Nothing here waits. When nothing is decoding, the loop blocks on :meth:`fileno`, an event in place of SGLang's poll
    every 5 ms, up to 10,000 times; what bounds the wait is wall time.

    Parameters
    ----------
    environment
        Vocabulary, width, end tokens and configuration.
    all_gather
        How ranks exchange their flags; ``None`` with a single rank. With several, every rank must call
        :meth:`get_ready_grammar_requests` in the same step.
    is_timekeeper
        Whether this rank's clock ends requests whose grammar is late. One rank's verdict reaches all of them.
    backend
        Instead of the configured one.
    compiler
        Instead of compile processes; for tests.
    """

    def __init__(
        self,
        environment: GrammarEnvironment,
        *,
        all_gather: AllGather | None = None,
        is_timekeeper: bool = True,
        backend: BaseGrammarBackend | None = None,
        compiler: Compiler | None = None,
        metrics: GrammarMetrics | None = None,
    ) -> None:
        self.metrics = metrics or GrammarMetrics()
        self.environment = environment
        self.grammar_backend = backend or create_grammar_backend(environment, metrics=self.metrics, compiler=compiler)
        self._timeout = environment.config.timeout
        self._all_gather = all_gather
        self._is_timekeeper = is_timekeeper
        self._queue: list[_Waiting[RequestT]] = []
        self._alarm = Alarm()

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    def has_waiting_grammars(self) -> bool:
        return bool(self._queue)

    def fileno(self) -> int:
        """Readable when a grammar is ready or failed, or a request's deadline has passed."""
        return self._alarm.fileno()

    def process_req_with_grammar(self, req: RequestT) -> bool:
        """Get or start compiling a request's grammar.

        Returns
        -------
        is_queued
            ``True``: the request waits, and :meth:`get_ready_grammar_requests` returns it later. ``False``: it has its
            grammar or its error already, or asked for none.
        """
        spec = req.grammar_spec
        if spec is None:
            return False
        if self.grammar_backend is None:
            req.grammar_error = InvalidGrammarError(
                "this server runs without grammars (--grammar-backend none); ask for no form"
            )
            return False
        value = self._look_up(self.grammar_backend, spec, req.reasoning)
        if isinstance(value, BaseGrammarObject):
            if self._all_gather is None:
                self._settle(req, value)
                return False
            # Ranks could disagree on what is cached or refused: with several, even that goes through the agreement.
            future: Future[BaseGrammarObject] = Future()
            future.set_result(value)
            value = future
        now = time.monotonic()
        waiting = _Waiting(req, value, now, now + self._timeout)
        self._queue.append(waiting)
        self._set_deadline()
        value.add_done_callback(lambda _: self._alarm.set())
        return True

    def thinking_budget(self, reasoning: ReasoningSpec) -> BaseGrammarObject:
        """What bounds the thinking of a request without a grammar; in its start state.

        Raises
        ------
        ValueError
            The marker has no tokens, or some outside the vocabulary.
        """
        return ThinkingBudget(self.environment, reasoning)

    def get_ready_grammar_requests(self) -> list[RequestT]:
        """Requests that leave the queue now: with a grammar, or with an error."""
        self._alarm.clear()
        if not self._queue:
            return []
        now = time.monotonic()
        verdicts = agree([self._verdict(waiting, now) for waiting in self._queue], self._all_gather)
        leaving, staying = [], []
        for waiting, verdict in zip(self._queue, verdicts, strict=True):
            if verdict == Verdict.PENDING:
                staying.append(waiting)
                continue
            if verdict == Verdict.READY:
                self._settle(waiting.request, self._outcome(waiting))
                self._note_queue_time(waiting, now)
            else:
                self._fail(waiting, is_late=verdict == Verdict.LATE)
            leaving.append(waiting.request)
        self._queue = staying
        self._set_deadline()
        return leaving

    def waits_for_another_rank(self) -> bool:
        """Whether a request is only waiting for other ranks: when they are done, :meth:`fileno` does not tell."""
        return any(waiting.future.done() for waiting in self._queue)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Forget waiting requests. A compile that nobody waits for any more is killed."""
        ids = set(request_ids)
        staying = []
        for waiting in self._queue:
            if waiting.request.request_id in ids:
                waiting.future.cancel()
                self.metrics.add("grammar_aborts_total")
            else:
                staying.append(waiting)
        self._queue = staying
        self._set_deadline()

    def clear(self) -> None:
        """Forget every waiting request and every cached grammar."""
        self.abort_requests([waiting.request.request_id for waiting in self._queue])
        self.flush()

    def flush(self) -> None:
        """Forget every cached grammar; requests that wait go on."""
        if self.grammar_backend is not None:
            self.grammar_backend.reset()

    def wait_until_warm(self, seconds: float) -> bool:
        """Compile a small grammar and wait for it; whether it is ready in time. Before the loop begins."""
        if self.grammar_backend is None:
            return True
        value, _ = self.grammar_backend.get_cached_or_future_value(GrammarSpec(kind="regex", value="a"))
        return isinstance(value, BaseGrammarObject) or bool(wait([value], seconds).done)

    def note_step(self) -> None:
        """A decode step was launched: while a request waits for its grammar, slow compiles leave steps the machine."""
        if self._queue and self.grammar_backend is not None:
            self.grammar_backend.note_step()

    def shutdown(self) -> None:
        """End the compile processes and close the event."""
        self.clear()
        if self.grammar_backend is not None:
            self.grammar_backend.shutdown()
        self._alarm.close()

    def _look_up(
        self, backend: BaseGrammarBackend, spec: GrammarSpec, reasoning: ReasoningSpec | None
    ) -> BaseGrammarObject | Future[BaseGrammarObject]:
        try:
            return backend.get_cached_or_future_value(spec, reasoning)[0]
        except GrammarError as error:
            return InvalidGrammarObject(self.environment, error)
        except ValueError as error:
            return InvalidGrammarObject(self.environment, InvalidGrammarError(str(error)))
        except BaseException as error:
            reraise_exit(error)
            return InvalidGrammarObject(self.environment, unforeseen(error))

    def _settle(self, req: RequestT, grammar: BaseGrammarObject) -> None:
        if isinstance(grammar, InvalidGrammarObject):
            req.grammar_error = grammar.error
            return
        try:
            grammar.set_stop_token_ids(sorted(set(req.stop_ids) | set(self.environment.eos_token_ids)))
            if any(token_id not in self.environment.unmatchable_ids for token_id in req.stop_ids):
                self._check_start(grammar)
        except BaseException as error:
            reraise_exit(error)
            req.grammar_error = error if isinstance(error, GrammarError) else unforeseen(error)
            return
        req.grammar = grammar

    @staticmethod
    def _check_start(grammar: BaseGrammarObject) -> None:
        """Raise where stop tokens that are ordinary text leave nothing for an answer to begin with."""
        mask = grammar.allocate_vocab_mask(grammar.environment.vocab_size, 1)
        grammar.fill_vocab_mask(mask, 0)
        if not mask.numpy().any():
            raise NothingBeginsError(
                "every token that a constrained answer could begin with is one of stop_token_ids; leave some out"
            )

    def _fail(self, waiting: _Waiting[RequestT], *, is_late: bool) -> None:
        request = waiting.request
        request.grammar = None
        if waiting.future.done() and not waiting.future.cancelled():
            grammar = self._outcome(waiting)
            if isinstance(grammar, InvalidGrammarObject):
                request.grammar_error = grammar.error
        waiting.future.cancel()
        if is_late:
            self.metrics.add("grammar_timeouts_total")
            request.grammar_error = timed_out(self._timeout)
        elif request.grammar_error is None:
            request.grammar_error = GrammarServiceUnavailableError("another rank could not make this grammar")

    def _verdict(self, waiting: _Waiting[RequestT], now: float) -> int:
        verdict: int = Verdict.PENDING
        if waiting.future.done():
            verdict = Verdict.FAILED if self._has_failed(waiting) else Verdict.READY
        return verdict | Verdict.LATE if self._is_timekeeper and now >= waiting.deadline else verdict

    def _has_failed(self, waiting: _Waiting[RequestT]) -> bool:
        return waiting.future.cancelled() or isinstance(self._outcome(waiting), InvalidGrammarObject)

    def _outcome(self, waiting: _Waiting[RequestT]) -> BaseGrammarObject:
        error = waiting.future.exception()
        if error is None:
            return waiting.future.result()
        return InvalidGrammarObject(self.environment, error if isinstance(error, GrammarError) else unforeseen(error))

    @staticmethod
    def _note_queue_time(waiting: _Waiting[RequestT], now: float) -> None:
        grammar = waiting.request.grammar
        if grammar is not None and grammar.grammar_stats is not None:
            grammar.grammar_stats.queue_seconds = now - waiting.queued_at

    def _set_deadline(self) -> None:
        if self._is_timekeeper:
            self._alarm.set_at(min((waiting.deadline for waiting in self._queue), default=None))

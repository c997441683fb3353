"""A whole scheduler in this process, driven step by step: real runner, sampler, grammars and drafters, no sockets."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from constrained.config import GrammarConfig, JsonWhitespace
from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.base import BaseGrammarObject, InvalidGrammarObject
from constrained.environment import GrammarEnvironment
from constrained.masks.slots import GrammarMasks
from constrained.spec import GrammarSpec
from constrained.stats import GrammarMetrics
from constrained.thinking.reasoner_backend import ReasonerGrammarBackend
from constrained.vocabulary import Vocabulary
from model_runner.runner import ModelRunner
from sampling.sampler import SamplerState
from scheduler.config import SchedulerConfig
from scheduler.connection import Events
from scheduler.drafters.build import build_drafter
from scheduler.drafters.grammar import MIN_FORCED_TOKENS
from scheduler.drafters.source import DraftSource
from scheduler.execution.step_executor import StepExecutor
from scheduler.loop import Scheduler
from scheduler.messages import (
    ChoiceOutput,
    DrafterStats,
    Failed,
    FromScheduler,
    GenerateRequest,
    Rejected,
    SchedulerReady,
    StepOutput,
    ToScheduler,
    Usage,
)
from scheduler.requests.request import RequestGroup

_CLIENT = b"bench"


@dataclass
class Answer:
    """One choice as it came."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    end: tuple[object, ...] = ()


@dataclass(frozen=True)
class Run:
    """What serving some requests gave and took."""

    answers: dict[tuple[str, int], Answer]
    usages: dict[tuple[str, int], Usage]
    errors: dict[str, str]
    steps: int
    accepted_tokens: int
    """Drafts that became output."""
    seconds: float

    @classmethod
    def total(cls, runs: Sequence[Run]) -> Run:
        """Runs of different requests as one."""
        return cls(
            {key: answer for run in runs for key, answer in run.answers.items()},
            {key: usage for run in runs for key, usage in run.usages.items()},
            {key: error for run in runs for key, error in run.errors.items()},
            sum(run.steps for run in runs),
            sum(run.accepted_tokens for run in runs),
            sum(run.seconds for run in runs),
        )

    @property
    def num_tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.answers.values())


class Engine:
    """One configuration of drafters over a loaded model.

    Parameters
    ----------
    runner, tokenizer, vocabulary, eos_token_ids
        The model.
    config
        What the scheduler is told.
    num_pages
        Fewer pages than the runner has force preemptions.
    min_forced_tokens
        Shortest forced run that is drafted, the server's own choice by default.
    row_tile
        The runner's own, or 1 for drafts wherever they are possible.
    """

    def __init__(
        self,
        runner: ModelRunner,
        tokenizer: Tokenizer,
        vocabulary: Vocabulary,
        eos_token_ids: tuple[int, ...],
        config: SchedulerConfig,
        *,
        whitespace: JsonWhitespace = "compact",
        num_pages: int | None = None,
        draft_model: DraftSource | None = None,
        min_forced_tokens: int = MIN_FORCED_TOKENS,
        row_tile: int = 1,
    ) -> None:
        environment = GrammarEnvironment(
            vocabulary,
            runner.vocab_size,
            eos_token_ids,
            GrammarConfig(json_whitespace=whitespace, max_draft_tokens=config.max_draft_tokens),
        )
        slots = config.effective_max_running_requests
        executor = StepExecutor(
            runner,
            SamplerState(runner.vocab_size, eos_token_ids, runner.device),
            GrammarMasks(environment, slots, runner.device),
            overlap=False,
        )
        self.grammars = InlineGrammars(environment)
        pages = runner.num_pages if num_pages is None else num_pages
        self._connection = _Connection()
        self.drafter = build_drafter(
            config,
            tokenizer,
            vocabulary.visible_bytes,
            runner.vocab_size,
            draft_model,
            min_forced_tokens,
        )
        self.scheduler = Scheduler(
            config,
            executor,
            self._connection,
            ready=_ready(runner, pages, slots),
            page_size=runner.page_size,
            row_tile=row_tile,
            eos_token_ids=eos_token_ids,
            token_bytes=vocabulary.visible_bytes,
            grammar_manager=self.grammars,  # type: ignore[arg-type]
            drafter=self.drafter,
        )

    def stats(self) -> dict[str, DrafterStats]:
        return self.drafter.stats()

    def run(
        self,
        requests: Sequence[GenerateRequest],
        *,
        together: bool,
        preempt: random.Random | None = None,
        preempt_share: float = 0.0,
    ) -> Run:
        """Serve requests to their end, all at once or one after the other.

        With ``preempt``, some request is preempted behind a share of the steps though pages are left.
        """
        answers: dict[tuple[str, int], Answer] = {}
        usages: dict[tuple[str, int], Usage] = {}
        errors: dict[str, str] = {}
        counters, planner = self.scheduler.counters, self.scheduler.planner
        steps, accepted = counters.steps, counters.draft_tokens_accepted
        started = time.perf_counter()
        for batch in [list(requests)] if together else [[request] for request in requests]:
            self._connection.incoming += [(_CLIENT, request) for request in batch]
            self.scheduler.receive(0)
            while self.scheduler.has_work:
                self.scheduler.step()
                if preempt is not None and planner.running and preempt.random() < preempt_share:
                    planner._preempt(preempt.choice(planner.running))
        seconds = time.perf_counter() - started
        for message in self._connection.take():
            if isinstance(message, StepOutput):
                for output in message.outputs:
                    if output.finish is not None:
                        usages[output.request_id, output.choice_index] = output.finish.usage
                    _add(answers.setdefault((output.request_id, output.choice_index), Answer()), output)
            elif isinstance(message, (Rejected, Failed)):
                errors[message.request_id] = message.error.message
        return Run(answers, usages, errors, counters.steps - steps, counters.draft_tokens_accepted - accepted, seconds)


def _add(answer: Answer, output: ChoiceOutput) -> None:
    answer.token_ids += output.token_ids
    answer.logprobs += [entry.logprob for entry in output.logprobs or ()]
    if output.finish is not None:
        finish = output.finish
        answer.end = (finish.reason, finish.stop_reason, finish.num_bytes, finish.usage.completion_tokens)


class _Connection:
    """Hands messages over within the process."""

    def __init__(self) -> None:
        self.incoming: list[tuple[bytes, ToScheduler]] = []
        self.num_refused_frames = 0
        self._sent: list[FromScheduler] = []

    def receive(self, timeout: float | None) -> Events:
        incoming, self.incoming = self.incoming, []
        return Events(messages=incoming)

    def send(self, client: bytes, message: FromScheduler) -> None:
        self._sent.append(message)

    def broadcast(self, message: FromScheduler) -> None:
        self.send(_CLIENT, message)

    def take(self) -> list[FromScheduler]:
        sent, self._sent = self._sent, []
        return sent

    def close(self) -> None:
        pass


class InlineGrammars:
    """Compiles at once and keeps what it compiled: compile time is no part of what is measured here."""

    def __init__(self, environment: GrammarEnvironment) -> None:
        self.metrics = GrammarMetrics()
        self._backend = AutoGrammarBackend(environment)
        self._reasoner = ReasonerGrammarBackend(self._backend)
        self._compiled: dict[GrammarSpec, BaseGrammarObject] = {}

    def fresh(self, spec: GrammarSpec) -> BaseGrammarObject:
        if spec not in self._compiled:
            self._compiled[spec] = self._backend._init_value_dispatch(spec)
        return self._compiled[spec].copy()

    def process_req_with_grammar(self, req: RequestGroup) -> bool:
        spec = req.grammar_spec
        if spec is None:
            raise ValueError("a request without a grammar asks for none")
        fresh = self.fresh(spec)
        if isinstance(fresh, InvalidGrammarObject):
            req.grammar_error = fresh.error
            return False
        req.grammar = fresh if req.reasoning is None else self._reasoner.wrap(fresh, req.reasoning)
        return False

    def waits_for_another_rank(self) -> bool:
        return False

    def note_step(self) -> None:
        """No compile is pending."""

    def get_ready_grammar_requests(self) -> list[RequestGroup]:
        return []


def _ready(runner: ModelRunner, num_pages: int, slots: int) -> SchedulerReady:
    return SchedulerReady(
        boot_id="bench",
        context_length=runner.context_length,
        vocab_size=runner.vocab_size,
        kv_cache_tokens=num_pages * runner.page_size,
        max_running_requests=slots,
        device=str(runner.device),
        dtype=str(runner.dtype).removeprefix("torch."),
        attention_backend=runner.attention_backend,
        num_parameters=runner.num_parameters,
        weight_bytes=runner.weight_bytes,
    )

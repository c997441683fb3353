"""Drive the real scheduler step by step, with a client at its socket, and say where each step's time went."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import zmq

from bench.serve.schemas import FORMS, same_name
from bench.step.spans import Spans
from constrained.spec import GrammarSpec
from sampling.params import SamplingParams
from scheduler.loop import Scheduler
from scheduler.messages import (
    AbortRequest,
    Failed,
    GenerateRequest,
    Hello,
    Rejected,
    decode_from_scheduler,
    encode,
)

_WARM_UP_STEPS = 3
_WAIT_MILLISECONDS = 60_000

_ITEM = FORMS[0].schema(same_name)
ENDLESS_GRAMMAR = GrammarSpec(
    kind="json_schema", value=json.dumps({"type": "array", "items": _ITEM, "minItems": 1000}), strict=True
)

StepKind = Literal["prefill", "decode"]


class StepProfileError(RuntimeError):
    """The scheduler did not run the steps that were to be measured."""


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """What steps to measure."""

    row_counts: tuple[int, ...]
    context_lengths: tuple[int, ...]
    """Prompt lengths; decode steps are measured right behind them."""
    steps: int
    """Measured steps of each kind."""
    prefill_tokens: int
    """Prompt tokens of a prefill step."""
    seed: int = 0
    structured: bool = False
    """Whether a grammar that never lets an answer end constrains every row."""

    @property
    def grammar(self) -> GrammarSpec | None:
        return ENDLESS_GRAMMAR if self.structured else None

    @property
    def longest(self) -> int:
        """Most tokens a row comes to have."""
        prompt = max(*self.context_lengths, self.prefill_tokens)
        rows = max(self.row_counts)
        # The first row decodes while the others are still prefilled.
        prefill_steps = 1 + -(-rows * prompt // max(1, self.prefill_tokens - rows))
        return prompt + prefill_steps + len(self.row_counts) * (self.steps + 2 * _WARM_UP_STEPS)

    def kv_cache_tokens(self, page_size: int) -> int:
        """Tokens of KV that keep every row running throughout."""
        return max(self.row_counts) * (-(-self.longest // page_size) + 2) * page_size


@dataclass(kw_only=True)
class StepProfile:
    """Milliseconds of one kind of step, for each measured step."""

    kind: StepKind
    rows: int
    context_length: int
    """Tokens before the measured ones."""
    tokens: int
    """Tokens computed in a step."""
    total_ms: list[float] = field(default_factory=list)
    parts_ms: list[dict[str, float]] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        return statistics.median(self.total_ms)

    def median_part_ms(self, part: str) -> float:
        """0 for a part that a step did not have."""
        return statistics.median(parts.get(part, 0.0) for parts in self.parts_ms)


class StepDriver:
    """A client of a scheduler that runs in this thread."""

    def __init__(self, scheduler: Scheduler, endpoint: str, spans: Spans, *, vocab_size: int) -> None:
        self._scheduler = scheduler
        self._spans = spans
        self._vocab_size = vocab_size
        self._running: list[str] = []
        self._num_sent = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(endpoint)
        self._send(Hello())
        scheduler.receive(None)
        if not self._socket.poll(_WAIT_MILLISECONDS):
            raise StepProfileError("the scheduler did not answer")
        self._read_answers()

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()

    def measure(self, shape: StepShape, progress: Callable[[str], None] = lambda line: None) -> list[StepProfile]:
        """Prefill first, then for each context length all row counts, the greatest first."""
        rng = random.Random(shape.seed)
        progress(f"prefill of {shape.prefill_tokens} tokens")
        profiles = [self._measure_prefill(shape, rng)]
        for context_length in shape.context_lengths:
            progress(f"decode behind {context_length} tokens")
            profiles += self._measure_decode(shape, context_length, rng)
        return profiles

    def _measure_prefill(self, shape: StepShape, rng: random.Random) -> StepProfile:
        profile = StepProfile(kind="prefill", rows=1, context_length=0, tokens=shape.prefill_tokens)
        for index in range(_WARM_UP_STEPS + shape.steps):
            self._start(1, shape.prefill_tokens, shape, rng)
            if index < _WARM_UP_STEPS:
                self._step()
            else:
                self._step(profile)
            self._stop_all_but(0)
        return profile

    def _measure_decode(self, shape: StepShape, context_length: int, rng: random.Random) -> list[StepProfile]:
        row_counts = sorted(shape.row_counts, reverse=True)
        self._start(row_counts[0], context_length, shape, rng)
        while self._scheduler.planner.waiting or any(not row.num_output for row in self._scheduler.planner.running):
            self._step()
        profiles = []
        for rows in row_counts:
            self._stop_all_but(rows)
            profile = StepProfile(kind="decode", rows=rows, context_length=context_length, tokens=rows)
            for _ in range(_WARM_UP_STEPS):
                self._step()
            for _ in range(shape.steps):
                self._step(profile)
            if len(self._scheduler.planner.running) != rows:
                raise StepProfileError(f"{len(self._scheduler.planner.running)} rows were running instead of {rows}")
            profiles.append(profile)
        self._stop_all_but(0)
        return profiles

    def _step(self, profile: StepProfile | None = None) -> None:
        self._spans.take()
        began = time.perf_counter()
        self._scheduler.receive(0)
        self._scheduler.step()
        ended = time.perf_counter()
        if profile is not None:
            profile.total_ms.append((ended - began) * 1000)
            profile.parts_ms.append({part: seconds * 1000 for part, seconds in self._spans.take().items()})
        self._read_answers()

    def _start(self, count: int, prompt_length: int, shape: StepShape, rng: random.Random) -> None:
        """Have ``count`` requests with prompts of their own queued."""
        for _ in range(count):
            request_id = str(self._num_sent)
            self._num_sent += 1
            self._running.append(request_id)
            self._send(
                GenerateRequest(
                    request_id=request_id,
                    prompt_token_ids=[rng.randrange(self._vocab_size) for _ in range(prompt_length)],
                    sampling=SamplingParams(max_tokens=10**6, ignore_eos=True, seed=self._num_sent),
                    grammar=shape.grammar,
                    stream=True,
                )
            )
        planner = self._scheduler.planner
        deadline = time.monotonic() + _WAIT_MILLISECONDS / 1000
        while len(planner.waiting) + len(planner.running) < len(self._running):
            if time.monotonic() > deadline:
                raise StepProfileError("the scheduler did not take the requests in")
            # Not an idle wait: the socket's own thread hands the messages over, grammars compile in theirs.
            time.sleep(0.002)
            self._scheduler.receive(0)
            self._read_answers()

    def _stop_all_but(self, rows: int) -> None:
        for request_id in self._running[rows:]:
            self._send(AbortRequest(request_id=request_id))
        del self._running[rows:]
        deadline = time.monotonic() + _WAIT_MILLISECONDS / 1000
        while len(self._scheduler.planner.running) > rows or (not rows and self._scheduler.has_work):
            if time.monotonic() > deadline:
                raise StepProfileError("the scheduler did not stop the requests")
            self._step()

    def _send(self, message: Hello | GenerateRequest | AbortRequest) -> None:
        self._socket.send(encode(message))

    def _read_answers(self) -> None:
        """Keep the socket empty, as an HTTP process would; a request that failed ends the profile."""
        while self._socket.poll(0):
            message = decode_from_scheduler(self._socket.recv())
            if isinstance(message, Rejected | Failed):
                raise StepProfileError(f"request {message.request_id}: {message.error.message}")

"""A scheduler without a model: real messages over real ZMQ, invented tokens.

The HTTP process cannot tell it from the real one, so tests and the overhead benchmark use it to see the HTTP process
alone. It runs in a thread or, for measuring, in a process of its own (``bench.http_overhead``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import zmq

from constrained.vocabulary import Vocabulary
from scheduler.messages import (
    AbortRequest,
    Admitted,
    CacheFlushed,
    ChoiceOutput,
    ErrorInfo,
    Failed,
    Finish,
    FinishReason,
    FlushCache,
    FromScheduler,
    GenerateRequest,
    GetStats,
    GrammarReport,
    Hello,
    PromptLogprobs,
    Rejected,
    SchedulerReady,
    SchedulerStats,
    StepOutput,
    TokenLogprob,
    TopLogprob,
    ToScheduler,
    Usage,
    decode_to_scheduler,
    encode,
)

TokensOf = Callable[[GenerateRequest, int], Sequence[int]]


def echo_prompt(request: GenerateRequest, choice: int) -> Sequence[int]:
    """The prompt again, over and over."""
    repeats = request.sampling.max_tokens // len(request.prompt_token_ids) + 1
    return request.prompt_token_ids * repeats


@dataclass
class Behaviour:
    """What the fake does; tests change it while it runs."""

    tokens_of: TokensOf = echo_prompt
    step_seconds: float = 0.0
    tokens_per_step: int = 1
    """More than one is what accepted drafts look like."""
    reject: ErrorInfo | None = None
    grammar: GrammarReport | None = None
    """Told of every admitted request that brings a grammar."""
    fail_after: int | None = None
    """Tokens after which a request ends with :class:`Failed`."""
    is_silent: bool = False
    """Neither admits nor rejects."""
    is_stalled: bool = False
    """Admits, and then gives no tokens."""
    is_frozen: bool = False
    """Hangs: does nothing and says nothing."""
    heartbeat_interval: float = 5.0
    cached_tokens: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    kv_cache_tokens: int = 4096
    context_length: int = 4096


@dataclass
class _Choice:
    client: bytes
    request: GenerateRequest
    index: int
    tokens: Sequence[int]
    position: int = 0
    text: bytearray = field(default_factory=bytearray)


class FakeScheduler:
    """Binds ``endpoint`` and answers until :meth:`stop`, in a thread.

    Attributes
    ----------
    received
        Every message that came, in order.
    """

    def __init__(self, endpoint: str, vocabulary: Vocabulary, behaviour: Behaviour | None = None) -> None:
        self._endpoint = endpoint
        self._vocabulary = vocabulary
        self.behaviour = behaviour or Behaviour()
        self.received: list[ToScheduler] = []
        self._choices: list[_Choice] = []
        self._clients: set[bytes] = set()
        self._context = zmq.Context()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._boots = 0

    def start(self) -> None:
        self._stopping.clear()
        self._boots += 1
        bound = threading.Event()
        self._thread = threading.Thread(target=self.run, args=(bound,), name="fake-scheduler", daemon=True)
        self._thread.start()
        if not bound.wait(10):
            raise RuntimeError(f"the fake scheduler could not bind {self._endpoint}")

    def stop(self) -> None:
        """Vanish, as a process does that was killed."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(10)
        self._choices.clear()

    def close(self) -> None:
        self.stop()
        self._context.term()

    @property
    def num_running(self) -> int:
        return len(self._choices)

    def requests(self) -> list[GenerateRequest]:
        return [message for message in list(self.received) if isinstance(message, GenerateRequest)]

    def aborted_ids(self) -> set[str | None]:
        return {message.request_id for message in list(self.received) if isinstance(message, AbortRequest)}

    def run(self, bound: threading.Event) -> None:
        """The loop; returns when stopped."""
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.bind(self._endpoint)
        bound.set()
        next_step = next_heartbeat = 0.0
        try:
            while not self._stopping.is_set():
                if self.behaviour.is_frozen:
                    time.sleep(0.005)
                    continue
                if time.monotonic() >= next_heartbeat:
                    next_heartbeat = time.monotonic() + self.behaviour.heartbeat_interval
                    for client in self._clients:
                        _send(socket, client, StepOutput(outputs=[]))
                wait = 20 if not self._runs() else max(0, int(1000 * (next_step - time.monotonic())))
                while socket.poll(wait):
                    client, frame = socket.recv_multipart()
                    self._take(socket, client, decode_to_scheduler(frame))
                    wait = 0
                if self._runs() and time.monotonic() >= next_step:
                    next_step = time.monotonic() + self.behaviour.step_seconds
                    self._step(socket)
        finally:
            socket.close()

    def _runs(self) -> bool:
        return bool(self._choices) and not self.behaviour.is_stalled

    def _take(self, socket: zmq.Socket[bytes], client: bytes, message: ToScheduler) -> None:
        self.received.append(message)
        self._clients.add(client)
        if isinstance(message, GenerateRequest):
            self._admit(socket, client, message)
        elif isinstance(message, AbortRequest):
            self._abort(socket, client, message.request_id)
        elif isinstance(message, Hello):
            _send(socket, client, self._ready())
        elif isinstance(message, GetStats):
            _send(socket, client, self._stats(message.call_id))
        else:
            assert isinstance(message, FlushCache)
            _send(socket, client, CacheFlushed(call_id=message.call_id, freed_tokens=7))

    def _admit(self, socket: zmq.Socket[bytes], client: bytes, request: GenerateRequest) -> None:
        behaviour = self.behaviour
        if behaviour.is_silent:
            return
        if behaviour.reject is not None:
            _send(socket, client, Rejected(request_id=request.request_id, error=behaviour.reject))
            return
        grammar = behaviour.grammar if request.grammar is not None else None
        _send(socket, client, Admitted(request_id=request.request_id, grammar=grammar))
        if request.sampling.prompt_logprobs is not None:
            _send(socket, client, self._prompt_logprobs(request))
        for index in range(request.sampling.n):
            self._choices.append(_Choice(client, request, index, behaviour.tokens_of(request, index)))

    def _abort(self, socket: zmq.Socket[bytes], client: bytes, name: str | None) -> None:
        gone = [choice for choice in self._choices if name in (None, *_names(choice.request))]
        self._choices = [choice for choice in self._choices if choice not in gone]
        for choice in gone:
            _send(socket, choice.client, StepOutput(outputs=[self._output(choice, [], 0, "abort")]))

    def _step(self, socket: zmq.Socket[bytes]) -> None:
        outputs: dict[bytes, list[ChoiceOutput]] = {}
        running: list[_Choice] = []
        failed: set[str] = set()
        for choice in self._choices:
            if self.behaviour.fail_after is not None and choice.position >= self.behaviour.fail_after:
                if choice.request.request_id not in failed:
                    failed.add(choice.request.request_id)
                    error = ErrorInfo(status=500, message="The row went bad.", type="server_error")
                    _send(socket, choice.client, Failed(request_id=choice.request.request_id, error=error))
                continue
            output = self._advance(choice)
            outputs.setdefault(choice.client, []).append(output)
            if output.finish is None:
                running.append(choice)
        self._choices = running
        for client, batch in outputs.items():
            _send(socket, client, StepOutput(outputs=batch))

    def _advance(self, choice: _Choice) -> ChoiceOutput:
        sampling = choice.request.sampling
        new: list[int] = []
        for _ in range(self.behaviour.tokens_per_step):
            if choice.position >= min(len(choice.tokens), sampling.max_tokens):
                break
            token_id = choice.tokens[choice.position]
            choice.position += 1
            new.append(token_id)
            choice.text += self._vocabulary.visible_bytes[token_id]
            if token_id in self.behaviour.eos_token_ids and not sampling.ignore_eos:
                return self._output(choice, new, 0, "stop")
            if token_id in sampling.stop_token_ids:
                return self._output(choice, new, 0, "stop", token_id)
            for stop in sampling.stop:
                if (place := choice.text.find(stop)) >= 0:
                    end = place + len(stop) if sampling.include_stop_str_in_output else place
                    return self._output(choice, new, 0, "stop", stop.decode(), end)
        if choice.position >= sampling.max_tokens:
            return self._output(choice, new, 0, "length")
        if choice.position >= len(choice.tokens):
            return self._output(choice, new, 0, "stop")
        return self._output(choice, new, _held_bytes(choice.text, sampling.stop), None)

    def _output(
        self,
        choice: _Choice,
        new: list[int],
        held_bytes: int,
        reason: FinishReason | None,
        stop_reason: str | int | None = None,
        num_bytes: int | None = None,
    ) -> ChoiceOutput:
        top = choice.request.sampling.logprobs
        usage = Usage(completion_tokens=choice.position, cached_tokens=self.behaviour.cached_tokens)
        return ChoiceOutput(
            request_id=choice.request.request_id,
            choice_index=choice.index,
            token_ids=new,
            held_bytes=held_bytes,
            logprobs=None if top is None else [_logprob(token_id, top) for token_id in new],
            finish=None
            if reason is None
            else Finish(reason=reason, usage=usage, stop_reason=stop_reason, num_bytes=num_bytes),
        )

    def _prompt_logprobs(self, request: GenerateRequest) -> PromptLogprobs:
        top = request.sampling.prompt_logprobs or 0
        rest = [_logprob(token_id, top) for token_id in request.prompt_token_ids[1:]]
        return PromptLogprobs(request_id=request.request_id, logprobs=[None, *rest])

    def _ready(self) -> SchedulerReady:
        return SchedulerReady(
            boot_id=str(self._boots),
            context_length=self.behaviour.context_length,
            vocab_size=len(self._vocabulary),
            kv_cache_tokens=self.behaviour.kv_cache_tokens,
            max_running_requests=64,
            device="cpu",
            dtype="float32",
            attention_backend="fake",
            num_parameters=0,
            weight_bytes=0,
        )

    def _stats(self, call_id: int) -> SchedulerStats:
        return SchedulerStats(
            call_id=call_id,
            running_requests=len(self._choices),
            waiting_requests=0,
            grammar_queue_requests=0,
            kv_tokens_used=128,
            kv_tokens_cached=64,
            kv_tokens_capacity=self.behaviour.kv_cache_tokens,
            prompt_tokens_total=100,
            cached_tokens_total=25,
            generated_tokens_total=50,
            preemptions_total=0,
            steps_total=10,
            requests_aborted_total=0,
            counters={"grammar_compile_seconds_total": 1.5},
        )


def _held_bytes(text: bytearray, stops: Sequence[bytes]) -> int:
    """Longest end of ``text`` that begins one of ``stops``."""
    return max(
        (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])),
        default=0,
    )


def _logprob(token_id: int, num_top: int) -> TokenLogprob:
    top = [TopLogprob(token_id, -0.5)] + [TopLogprob(other, -1.0 - other) for other in range(num_top)]
    return TokenLogprob(token_id, -0.5, top[:num_top])


def _send(socket: zmq.Socket[bytes], client: bytes, message: FromScheduler) -> None:
    socket.send_multipart([client, encode(message)])


def _names(request: GenerateRequest) -> tuple[str, ...]:
    return request.request_id, request.request_id.rpartition(":")[0], request.client_request_id

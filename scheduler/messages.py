"""Messages between HTTP processes and the scheduler: msgpack over ZMQ, one struct per message.

Each HTTP process connects a DEALER socket to the scheduler's ROUTER socket; a frame holds one message. A frame that
does not decode into exactly one of these structs raises :class:`MessageError` and is refused. Free of torch.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from constrained.spec import GrammarSpec, ReasoningSpec
from sampling.params import SamplingParams

PROTOCOL_VERSION = 1

FinishReason = Literal["stop", "length", "abort"]


class MessageError(ValueError):
    """A frame is not a message of this protocol."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    pass


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes an OpenAI error body: ``{"error": {"message", "type", "param", "code"}}``."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None


# HTTP process -> scheduler


class Hello(_Message, frozen=True, kw_only=True):
    """First message of an HTTP process, and after every reconnect; answered with :class:`SchedulerReady`."""

    protocol_version: int = PROTOCOL_VERSION


class GenerateRequest(_Message, frozen=True, kw_only=True):
    """Generate ``sampling.n`` choices for one prompt. Answered first with :class:`Admitted` or :class:`Rejected`."""

    request_id: str
    client_request_id: str = ""
    """The client's own name for it, which need not be unique; it can be aborted by that, too."""
    prompt_token_ids: list[int]
    sampling: SamplingParams
    grammar: GrammarSpec | None = None
    grammar_field: str = "response_format"
    """The field of the client's request that asked for the grammar; errors name it."""
    reasoning: ReasoningSpec | None = None
    stops_between_forms: bool = False
    """Whether stop strings end the answer where its grammar leaves the text free (words around tool calls)."""
    priority: int = 0
    """Higher runs earlier; equal priorities follow the scheduling policy."""
    stream: bool = False
    """When false, a choice's tokens may come in one :class:`ChoiceOutput` at its end."""
    may_draft: bool = True
    """When false, every token takes a step of its own; the answer is the same."""
    prediction_token_ids: list[int] = []
    """What the client expects the answer to be: proposed as drafts, changes nothing but the speed."""


class AbortRequest(_Message, frozen=True, kw_only=True):
    """Stop requests and free what they hold. Silent when there are none; otherwise their choices end with ``abort``."""

    request_id: str | None
    """The sender's request; or whatever has that id, or that of the client, at any HTTP process. ``None``: all."""


class FlushCache(_Message, frozen=True, kw_only=True):
    """Drop every unreferenced page of the prefix cache. Answered with :class:`CacheFlushed`."""

    call_id: int


class GetStats(_Message, frozen=True, kw_only=True):
    """Answered with :class:`SchedulerStats`."""

    call_id: int


# scheduler -> HTTP process


class SchedulerReady(_Message, frozen=True, kw_only=True):
    """The model is loaded and requests are served. ``boot_id`` changes with every start of the process."""

    boot_id: str
    context_length: int
    vocab_size: int
    kv_cache_tokens: int
    """Capacity of the KV pool in tokens: the longest prompt plus output that can ever run."""
    max_running_requests: int
    device: str
    dtype: str
    attention_backend: str
    num_parameters: int
    weight_bytes: int


class GrammarReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a request came by its grammar."""

    backend: str | None
    """The engine that serves it."""
    queue_seconds: float
    """From arrival until the grammar was ready; 0 for a known one."""
    compile_seconds: float
    is_cache_hit: bool
    joined_compile: bool
    """Whether it shared the compile of an earlier request."""
    size_bytes: int
    unenforced: tuple[str, ...] = ()
    """JSON pointers of keywords that nothing enforces, of a lenient request."""


class Admitted(_Message, frozen=True, kw_only=True):
    """The request is valid and queued or running; its status line may be sent."""

    request_id: str
    grammar: GrammarReport | None = None
    """``None`` for free text."""


class Rejected(_Message, frozen=True, kw_only=True):
    """The request never ran."""

    request_id: str
    error: ErrorInfo


class TopLogprob(msgspec.Struct, frozen=True, array_like=True):
    token_id: int
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token and of the most likely tokens at its position, most likely first; finite."""

    token_id: int
    logprob: float
    top: list[TopLogprob]


class Usage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counts of one choice, in tokens."""

    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Finish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why and where a choice ended."""

    reason: FinishReason
    usage: Usage
    stop_reason: str | int | None = None
    """The stop string or stop token id that matched; ``None`` for end of text."""
    num_bytes: int | None = None
    """Length in bytes to cut the choice's output text at (special tokens count nothing); ``None`` keeps all."""


class ChoiceOutput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New accepted tokens of one choice."""

    request_id: str
    choice_index: int
    token_ids: list[int]
    held_bytes: int = 0
    """Bytes at the end of the output so far that may still turn out to be part of a stop string: not to be shown."""
    logprobs: list[TokenLogprob] | None = None
    finish: Finish | None = None


class StepOutput(_Message, frozen=True, kw_only=True):
    """Everything one step has for one HTTP process."""

    outputs: list[ChoiceOutput]


class PromptLogprobs(_Message, frozen=True, kw_only=True):
    """Log-probabilities of the prompt's tokens; the first has none. Sent once, before the first choice's output."""

    request_id: str
    logprobs: list[TokenLogprob | None]


class Failed(_Message, frozen=True, kw_only=True):
    """An admitted request ended by an error; every choice of it is over."""

    request_id: str
    error: ErrorInfo


class CacheFlushed(_Message, frozen=True, kw_only=True):
    call_id: int
    freed_tokens: int


class DrafterStats(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one kind of draft has done since start."""

    proposed_tokens: int
    accepted_tokens: int
    """Tokens of the output that took no step of their own."""
    drafts_by_accepted: list[int]
    """``[k]``: drafts of which exactly k tokens were accepted."""


class SchedulerStats(_Message, frozen=True, kw_only=True):
    """Counters since start, and gauges."""

    call_id: int
    running_requests: int
    waiting_requests: int
    grammar_queue_requests: int
    kv_tokens_used: int
    """Tokens in pages that running requests refer to."""
    kv_tokens_cached: int
    """Tokens in pages that only the prefix cache holds."""
    kv_tokens_capacity: int
    prompt_tokens_total: int
    cached_tokens_total: int
    generated_tokens_total: int
    preemptions_total: int
    steps_total: int
    requests_aborted_total: int
    grammar_cache_bytes: int = 0
    drafters: dict[str, DrafterStats] = {}
    counters: dict[str, float] = {}
    """Further counters by metric name without prefix, such as ``grammar_compile_seconds_total``."""


ToScheduler = Hello | GenerateRequest | AbortRequest | FlushCache | GetStats
FromScheduler = (
    SchedulerReady | Admitted | Rejected | StepOutput | PromptLogprobs | Failed | CacheFlushed | SchedulerStats
)

_encoder = msgspec.msgpack.Encoder()
_to_scheduler_decoder = msgspec.msgpack.Decoder(ToScheduler)
_from_scheduler_decoder = msgspec.msgpack.Decoder(FromScheduler)


def encode(message: ToScheduler | FromScheduler) -> bytes:
    """One message as one msgpack frame."""
    return _encoder.encode(message)


def decode_to_scheduler(frame: bytes) -> ToScheduler:
    """Raises :class:`MessageError` for anything but one message an HTTP process may send."""
    try:
        return _to_scheduler_decoder.decode(frame)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise MessageError(str(error)) from error


def decode_from_scheduler(frame: bytes) -> FromScheduler:
    """Raises :class:`MessageError` for anything but one message the scheduler may send."""
    try:
        return _from_scheduler_decoder.decode(frame)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise MessageError(str(error)) from error

"""Every message survives the wire, and nothing else is taken for one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constrained.spec import GrammarSpec, ReasoningSpec
from sampling.params import SamplingParams
from scheduler import messages as m

SAMPLING = SamplingParams(
    max_tokens=5, n=2, seed=-1, stop=(b"\x00\xff", b"end"), stop_token_ids=(3,), logit_bias={7: -1.5}, logprobs=2
)
USAGE = m.Usage(completion_tokens=3, cached_tokens=2, reasoning_tokens=1)
FINISH = m.Finish(reason="stop", usage=USAGE, stop_reason="end", num_bytes=4)
LOGPROB = m.TokenLogprob(token_id=1, logprob=-0.5, top=[m.TopLogprob(token_id=1, logprob=-0.5)])
ERROR = m.ErrorInfo(status=400, message="wrong", param="prompt", code="c")

TO_SCHEDULER = [
    m.Hello(),
    m.GenerateRequest(request_id="a", prompt_token_ids=[1, 2], sampling=SAMPLING),
    m.GenerateRequest(
        request_id="b",
        prompt_token_ids=[1],
        sampling=SAMPLING,
        grammar=GrammarSpec(kind="regex", value="a+"),
        reasoning=ReasoningSpec(think_end_ids=(4, 5), is_thinking=True),
        priority=-3,
        stream=True,
    ),
    m.AbortRequest(request_id="a"),
    m.FlushCache(call_id=1),
    m.GetStats(call_id=2),
]
FROM_SCHEDULER = [
    m.SchedulerReady(
        boot_id="x",
        context_length=1,
        vocab_size=2,
        kv_cache_tokens=3,
        max_running_requests=4,
        device="cpu",
        dtype="float32",
        attention_backend="torch",
        num_parameters=5,
        weight_bytes=6,
    ),
    m.Admitted(request_id="a"),
    m.Rejected(request_id="a", error=ERROR),
    m.StepOutput(
        outputs=[
            m.ChoiceOutput(request_id="a", choice_index=0, token_ids=[1], held_bytes=2, logprobs=[LOGPROB]),
            m.ChoiceOutput(request_id="a", choice_index=1, token_ids=[], finish=FINISH),
        ]
    ),
    m.PromptLogprobs(request_id="a", logprobs=[None, LOGPROB]),
    m.Failed(request_id="a", error=ERROR),
    m.CacheFlushed(call_id=1, freed_tokens=16),
    m.SchedulerStats(
        call_id=2,
        running_requests=1,
        waiting_requests=1,
        grammar_queue_requests=1,
        kv_tokens_used=1,
        kv_tokens_cached=1,
        kv_tokens_capacity=1,
        prompt_tokens_total=1,
        cached_tokens_total=1,
        generated_tokens_total=1,
        preemptions_total=1,
        steps_total=1,
        requests_aborted_total=1,
        counters={"x_total": 1.5},
    ),
]


def test_the_examples_cover_every_message() -> None:
    assert {type(message) for message in TO_SCHEDULER} == set(m.ToScheduler.__args__)
    assert {type(message) for message in FROM_SCHEDULER} == set(m.FromScheduler.__args__)


@pytest.mark.parametrize("message", TO_SCHEDULER, ids=lambda message: type(message).__name__)
def test_messages_to_the_scheduler_round_trip_and_go_one_way(message: m.ToScheduler) -> None:
    frame = m.encode(message)
    assert m.decode_to_scheduler(frame) == message
    with pytest.raises(m.MessageError):
        m.decode_from_scheduler(frame)


@pytest.mark.parametrize("message", FROM_SCHEDULER, ids=lambda message: type(message).__name__)
def test_messages_from_the_scheduler_round_trip_and_go_one_way(message: m.FromScheduler) -> None:
    frame = m.encode(message)
    assert m.decode_from_scheduler(frame) == message
    with pytest.raises(m.MessageError):
        m.decode_to_scheduler(frame)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x93",
        m.encode(TO_SCHEDULER[1])[:-1],
        m.encode(TO_SCHEDULER[1]) + b"\x00",
        msgspec.msgpack.encode({"type": "Hello", "protocol_version": "1"}),
        msgspec.msgpack.encode({"type": "Hello", "surprise": 1}),
        msgspec.msgpack.encode({"type": "Unknown"}),
        msgspec.msgpack.encode({"request_id": "a"}),
        msgspec.msgpack.encode({"type": "AbortRequest"}),
        msgspec.msgpack.encode([1, 2, 3]),
        msgspec.msgpack.encode({"type": "AbortRequest", "request_id": 1}),
    ],
)
def test_malformed_frames_are_refused(frame: bytes) -> None:
    with pytest.raises(m.MessageError):
        m.decode_to_scheduler(frame)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_message_or_a_message_error(frame: bytes) -> None:
    try:
        message = m.decode_to_scheduler(frame)
    except m.MessageError:
        return
    assert m.decode_to_scheduler(m.encode(message)) == message


@given(st.integers(0, len(TO_SCHEDULER) - 1), st.data())
def test_a_flipped_byte_is_a_message_or_a_message_error(index: int, data: st.DataObject) -> None:
    frame = bytearray(m.encode(TO_SCHEDULER[index]))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        m.decode_to_scheduler(bytes(frame))
    except m.MessageError:
        return

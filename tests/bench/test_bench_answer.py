from __future__ import annotations

import json
from typing import Any

import pytest

from bench.serve.answer import fits_schema, read_answer
from bench.serve.client import Exchange
from bench.serve.workloads import Job

SCHEMA = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}


def exchange(*events: Any, schema: dict[str, Any] | None = None, done: bool = True) -> Exchange:
    """Events arrive one second apart, the first one second after the request."""
    pieces = [(11.0 + i, b"data: " + json.dumps(event).encode() + b"\n\n") for i, event in enumerate(events)]
    if done:
        pieces.append((11.0 + len(events), b"data: [DONE]\n\n"))
    job = Job(messages=(), max_tokens=5, schema=schema)
    return Exchange(job=job, turn=0, started=10.0, ended=11.0 + len(events), pieces=pieces)


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, **more}]}


STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def test_role_event_is_no_token() -> None:
    answer = read_answer(exchange({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, text("a"), STOP))
    assert answer.failure is None
    assert answer.time_to_first_token == 2.0


def test_tokens_without_text_count_when_their_ids_are_named() -> None:
    held = {"choices": [{"delta": {"content": ""}, "token_ids": [5]}]}
    answer = read_answer(exchange(held, text("é", token_ids=[6, 7]), STOP))
    assert answer.arrivals == [1.0, 2.0]
    assert answer.output_tokens == 3


@pytest.mark.parametrize("delta", [{"reasoning_content": "hm"}, {"tool_calls": [{"index": 0}]}])
def test_reasoning_and_tool_calls_are_tokens_but_not_text(delta: dict[str, Any]) -> None:
    answer = read_answer(exchange({"choices": [{"delta": delta}]}, text("a"), STOP))
    assert answer.time_to_first_token == 1.0
    assert answer.text == "a"


def test_stream_without_done_is_closed_early() -> None:
    answer = read_answer(exchange(text("a"), STOP, done=False))
    assert answer.failure is not None
    assert answer.failure.kind == "closed"


def test_stream_without_finish_reason_is_closed_early() -> None:
    answer = read_answer(exchange(text("a")))
    assert answer.failure is not None
    assert answer.failure.kind == "closed"


def test_answer_without_tokens_is_a_failure() -> None:
    answer = read_answer(exchange(STOP))
    assert answer.failure is not None
    assert answer.failure.kind == "no_tokens"


@pytest.mark.parametrize("event", [[1], "text", 3, {"choices": 3}, {"choices": [None]}, {"usage": 1, "choices": []}])
def test_events_of_the_wrong_shape_are_malformed(event: Any) -> None:
    answer = read_answer(exchange(event, text("a"), STOP))
    assert answer.failure is not None
    assert answer.failure.kind == "malformed"


def test_bytes_that_are_not_utf8_are_malformed() -> None:
    broken = exchange(text("a"), STOP)
    broken.pieces.insert(0, (10.5, b"data: \xff\n\n"))
    answer = read_answer(broken)
    assert answer.failure is not None
    assert answer.failure.kind == "malformed"


def test_validity_is_of_the_whole_text() -> None:
    assert read_answer(exchange(text('{"n"'), text(": 1}"), STOP, schema=SCHEMA)).is_valid is True
    assert read_answer(exchange(text('{"n": "1"}'), STOP, schema=SCHEMA)).is_valid is False
    assert read_answer(exchange(text("{}"), STOP)).is_valid is None


def test_failed_answer_is_not_valid() -> None:
    assert read_answer(exchange(text('{"n": 1}'), done=False, schema=SCHEMA)).is_valid is False


@pytest.mark.parametrize("bad", ['{"n": NaN}', '{"n": 1, "n": 2}', '{"n": 1} and more', "", "[" * 100_000])
def test_what_is_not_strict_json_fits_no_schema(bad: str) -> None:
    assert not fits_schema(bad, SCHEMA)
    assert not fits_schema(bad, {})

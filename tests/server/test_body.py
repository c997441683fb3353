"""What a body costs before it is refused, and what an error repeats of it."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc

import pytest
from pydantic import model_validator
from starlette.requests import Request

from scheduler.messages import ErrorInfo
from server.config import HttpConfig
from server.errors import ApiError, BadRequestError, SchedulerError
from server.http.body import parse_json_object, read_request
from server.validation import RequestModel

LONG_KEY = b"A" * 50_000


def refusal(body: bytes) -> BadRequestError:
    with pytest.raises(BadRequestError) as caught:
        parse_json_object(body, max_depth=256)
    return caught.value


@pytest.mark.parametrize("value", [b"NaN", b"-Infinity", b"1e999", b'"\\ud800"', b'{"\\udfff": 1}'])
def test_a_bad_value_among_many_siblings_below_a_long_key_costs_no_more_than_its_body(value):
    body = b'{"%s": [%s%s]}' % (LONG_KEY, b"0," * 20_000, value)
    tracemalloc.start()
    try:
        error = refusal(body)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()
    assert error.param == "A" * 100
    assert len(error.message) < 200


def test_a_body_full_of_bad_numbers_keeps_one_of_them():
    body = b'{"a": [%s]}' % b",".join([b"NaN"] * 100_000)
    tracemalloc.start()
    try:
        assert refusal(body).param == "a[0]"
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"a": {"b": [1, {"c": NaN}]}, "d": NaN}', "a.b[1].c"),
        (b'{"a": [[], [[1e999]]]}', "a[1][0][0]"),
        (b'{"a": [], "b": {"c": "\\ud800"}}', "b.c"),
        (b'{"a": {"\\ud800x": 1}}', "a.\\ud800x"),
    ],
)
def test_the_first_bad_value_is_named_by_its_path(body, param):
    assert refusal(body).param == param


def test_a_pair_of_surrogates_is_a_character():
    assert parse_json_object(b'{"a": "\\ud83d\\ude00"}', max_depth=5) == {"a": "\U0001f600"}


def test_an_object_of_very_many_keys_is_refused_before_they_are_looked_at():
    body = b"{" + b",".join(b'"k%d": 1' % i for i in range(10_001)) + b"}"
    assert "10000 keys" in refusal(body).message


@pytest.mark.parametrize(
    "error",
    [
        BadRequestError("x" * 100_000 + " shorten it", param="y" * 100_000),
        SchedulerError(ErrorInfo(status=400, message="x" * 100_000 + " shorten it", param="y" * 9000), retry_after=1),
    ],
    ids=["server", "scheduler"],
)
def test_an_error_repeats_a_bounded_part_of_what_a_client_sent(error):
    assert len(error.encoded()) < 2500
    assert error.message.endswith(" shorten it")


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_every_error_has_a_code(status):
    assert SchedulerError(ErrorInfo(status=status, message="m"), retry_after=1).code
    assert ApiError("m").code


class Noted(RequestModel):
    text: str
    thread: int = 0

    @model_validator(mode="after")
    def _note_the_thread(self) -> Noted:
        self.thread = threading.get_ident()
        return self


@pytest.mark.parametrize(("size", "is_here"), [(100, True), (1_000_000, False)])
def test_a_long_body_is_read_beside_the_loop(size: int, is_here: bool):
    async def receive():
        return {"type": "http.request", "body": b'{"text": "%s"}' % (b"a" * size)}

    read = asyncio.run(read_request(Noted, Request({"type": "http", "headers": []}, receive), HttpConfig(endpoints=())))
    assert len(read.text) == size
    assert (read.thread == threading.get_ident()) is is_here

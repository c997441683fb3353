from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.serve.sse import Event, read_events


def test_event_bears_the_time_of_the_bytes_that_complete_it() -> None:
    pieces = [(1.0, b"data: he"), (2.0, b"llo\n"), (3.0, b"\ndata: next\n\n")]
    assert list(read_events(pieces)) == [Event(3.0, "message", "hello"), Event(3.0, "message", "next")]


def test_lines_of_one_event_are_joined_and_comments_skipped() -> None:
    stream = b": ping\n\nevent: error\r\ndata:a\r\ndata: b\r\nid: 4\r\n\r\n"
    assert list(read_events([(0.0, stream)])) == [Event(0.0, "error", "a\nb")]


def test_event_cut_off_by_the_end_is_dropped() -> None:
    assert list(read_events([(0.0, b"data: whole\n\ndata: half\n")])) == [Event(0.0, "message", "whole")]


def test_event_name_does_not_leak_into_the_next_event() -> None:
    events = list(read_events([(0.0, b"event: error\n\ndata: fine\n\n")]))
    assert events == [Event(0.0, "message", "fine")]


@given(st.lists(st.integers(1, 40), max_size=30))
def test_any_cutting_of_the_bytes_gives_the_same_events(lengths: list[int]) -> None:
    stream = 'data: {"text": "Zürich 東京"}\r\n\r\nevent: done\ndata: x\ndata: y\n\ndata: [DONE]\n\n'.encode()
    pieces, begin = [], 0
    for length in lengths:
        pieces.append((float(begin), stream[begin : begin + length]))
        begin += length
    pieces.append((float(begin), stream[begin:]))
    whole = [(event.name, event.data) for event in read_events([(0.0, stream)])]
    assert [(event.name, event.data) for event in read_events(pieces)] == whole
    assert whole == [("message", '{"text": "Zürich 東京"}'), ("done", "x\ny"), ("message", "[DONE]")]

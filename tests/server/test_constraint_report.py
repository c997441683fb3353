"""What a client and an operator learn of how a request came by its grammar."""

from __future__ import annotations

import json
import logging

import pytest

from scheduler.messages import GrammarReport

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "contentEncoding": "base64"}}}
LEFT_OUT = ["/properties/a/contentEncoding"]


def report(**changes):
    values = {
        "backend": "llguidance",
        "queue_seconds": 0.0123,
        "compile_seconds": 0.01,
        "is_cache_hit": False,
        "joined_compile": False,
        "size_bytes": 1000,
        "unenforced": tuple(LEFT_OUT),
    }
    return GrammarReport(**(values | changes))


def body(path, **fields):
    asked = {"messages": [{"role": "user", "content": "hello"}]} if path == CHAT else {"prompt": "hello"}
    return {**asked, "json_schema": SCHEMA, "max_tokens": 4, **fields}


def chunks(text):
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_lenient_answer_lists_what_was_not_enforced(server, path):
    server.behaviour.grammar = report()
    assert server.post(path, body(path, lenient=True)).json()["unenforced"] == LEFT_OUT


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_every_chunk_of_a_lenient_stream_lists_what_was_not_enforced(server, path):
    server.behaviour.grammar = report()
    events = chunks(server.post(path, body(path, lenient=True, stream=True)).text)
    assert len(events) > 1
    assert all(event["unenforced"] == LEFT_OUT for event in events)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_lenient_answer_says_so_when_all_was_enforced(server, path):
    server.behaviour.grammar = report(unenforced=())
    assert server.post(path, body(path, lenient=True)).json()["unenforced"] == []


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stream", [False, True])
def test_answers_that_did_not_ask_for_leniency_have_no_list(server, path, stream):
    server.behaviour.grammar = report(unenforced=())
    assert "unenforced" not in server.post(path, body(path, stream=stream)).text


def test_the_openai_client_reads_the_list(server):
    server.behaviour.grammar = report()
    answer = server.openai().chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=4,
        extra_body={"json_schema": SCHEMA, "lenient": True},
    )
    assert answer.model_extra["unenforced"] == LEFT_OUT


@pytest.mark.parametrize(
    ("changes", "source"),
    [({}, "compiled"), ({"is_cache_hit": True, "queue_seconds": 0.0}, "cache"), ({"joined_compile": True}, "joined")],
)
def test_the_log_line_says_where_the_grammar_came_from(server, caplog, wait_until, changes, source):
    server.behaviour.grammar = report(**changes)
    with caplog.at_level(logging.INFO, logger="scansion.access"):
        server.post(CHAT, body(CHAT))
        wait_until(lambda: any(getattr(record, "fields", {}).get("path") == CHAT for record in caplog.records))
    (fields,) = [record.fields for record in caplog.records if getattr(record, "fields", {}).get("path") == CHAT]
    assert fields["grammar"] == "llguidance"
    assert fields["grammar_from"] == source
    assert fields["grammar_wait_ms"] == (0.0 if source == "cache" else 12.3)


def test_the_wait_for_grammars_is_a_histogram(server):
    server.behaviour.grammar = report()
    server.post(CHAT, body(CHAT))
    text = server.get("/metrics").text
    assert 'scansion_grammar_wait_seconds_count{backend="llguidance"} 1.0' in text
    assert 'scansion_grammar_wait_seconds_sum{backend="llguidance"} 0.0123' in text


def test_free_text_has_no_grammar_in_the_metrics(server):
    server.behaviour.grammar = report()
    server.post(CHAT, {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2})
    assert "scansion_grammar_wait_seconds_count" not in server.get("/metrics").text

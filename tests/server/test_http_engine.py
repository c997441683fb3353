"""What clients see when the scheduler dies, hangs, refuses or comes back, and what it sees when clients leave."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.fake_scheduler import Behaviour
from scheduler.messages import Hello

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hello world"}]


def open_and_leave(server, path, body, *, read_first=False):
    """Send a request over a bare socket and hang up."""
    host, port = server.url.removeprefix("http://").split(":")
    raw = json.dumps(body).encode()
    connection = socket.create_connection((host, int(port)), timeout=5)
    connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(raw)) + raw)
    if read_first:
        assert b"200 OK" in connection.recv(100)
    return connection


def test_health_follows_the_scheduler(make_server, wait_until):
    server = make_server(scheduler_runs=False)
    answer = server.get("/health")
    assert answer.status_code == 503
    refused = server.post(CHAT, {"messages": MESSAGES})
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    server.scheduler.start()
    wait_until(lambda: server.get("/health").status_code == 200)
    server.scheduler.stop()
    wait_until(lambda: server.get("/health").status_code == 503)


def test_every_waiting_client_gets_an_error_at_once_when_the_scheduler_dies(server, wait_until):
    server.behaviour.step_seconds = 0.02
    server.behaviour.tokens_of = lambda request, choice: [70] * 4000
    bodies = [{"messages": MESSAGES, "stream": i % 2 == 0} for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(server.post, CHAT, body) for body in bodies]
        wait_until(lambda: server.scheduler.num_running == 8)
        time.sleep(0.1)
        server.scheduler.stop()
        died = time.monotonic()
        answers = [future.result(5) for future in futures]
        assert time.monotonic() - died < 5.0
    for body, answer in zip(bodies, answers, strict=True):
        if body["stream"]:
            assert answer.status_code == 200
            last = answer.text.split("\n\n")[-2]
            assert last.startswith("event: error\n")
            assert json.loads(last.split("data: ")[1])["error"]["code"] == "engine_unavailable"
        else:
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "engine_unavailable"
    assert server.context.engine.num_requests == 0


def test_a_scheduler_that_hangs_is_told_to_clients_and_welcomed_back(make_server, wait_until):
    server = make_server(behaviour=Behaviour(heartbeat_interval=0.1), scheduler_timeout=0.5)
    server.behaviour.step_seconds = 0.02
    server.behaviour.tokens_of = lambda request, choice: [70] * 4000
    time.sleep(1.0)
    assert server.get("/health").status_code == 200, "an idle scheduler is not a hung one"
    bodies = [{"messages": MESSAGES, "stream": i % 2 == 0} for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(server.post, CHAT, body) for body in bodies]
        wait_until(lambda: server.scheduler.num_running == 4)
        server.behaviour.is_frozen = True
        answers = [future.result(5) for future in futures]
    assert [answer.status_code for answer in answers] == [200, 503, 200, 503]
    assert all("did not answer for 0.5 seconds" in answer.text for answer in answers)
    assert server.get("/health").status_code == 503
    assert server.post(CHAT, {"messages": MESSAGES}).status_code == 503
    server.behaviour.is_frozen = False
    server.wait_ready()
    assert server.post(CHAT, {"messages": MESSAGES, "max_tokens": 3}).status_code == 200


def test_requests_work_again_after_the_scheduler_is_restarted(server, wait_until):
    for boot in ("1", "2", "3"):
        wait_until(lambda boot=boot: server.context.engine.ready and server.context.engine.ready.boot_id == boot)
        assert server.post(CHAT, {"messages": MESSAGES, "max_tokens": 3}).status_code == 200
        server.scheduler.stop()
        wait_until(lambda: server.context.engine.ready is None)
        server.scheduler.start()
    assert sum(isinstance(message, Hello) for message in server.scheduler.received) >= 3


def test_nothing_sent_to_a_dead_scheduler_reaches_its_successor(server, wait_until):
    server.scheduler.stop()
    wait_until(lambda: server.context.engine.ready is None)
    for _ in range(3):
        assert server.post(CHAT, {"messages": MESSAGES}).status_code == 503
    server.scheduler.received.clear()
    server.scheduler.start()
    server.wait_ready()
    assert server.scheduler.requests() == []


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_slot(server, wait_until, path, stream):
    server.behaviour.step_seconds = 0.01
    server.behaviour.tokens_of = lambda request, choice: [70] * 4000
    content = {"messages": MESSAGES} if path == CHAT else {"prompt": ["a", "b"]}
    connection = open_and_leave(server, path, {**content, "n": 2, "stream": stream}, read_first=stream)
    wait_until(lambda: server.scheduler.num_running == (2 if path == CHAT else 4))
    connection.close()
    wait_until(lambda: server.scheduler.num_running == 0, seconds=2)
    assert server.scheduler.aborted_ids() == {request.request_id for request in server.scheduler.requests()}
    wait_until(lambda: server.context.engine.num_requests == 0)
    assert not server.context.running


def test_a_client_that_leaves_before_admission_is_aborted(server, wait_until):
    server.behaviour.is_silent = True
    connection = open_and_leave(server, CHAT, {"messages": MESSAGES})
    wait_until(lambda: server.scheduler.requests())
    connection.close()
    wait_until(lambda: server.scheduler.aborted_ids())


def test_no_first_answer_is_a_504_and_an_abort(make_server, wait_until):
    server = make_server(first_answer_timeout=0.2)
    server.behaviour.is_silent = True
    answer = server.post(CHAT, {"messages": MESSAGES, "stream": True})
    assert answer.status_code == 504
    wait_until(lambda: server.scheduler.aborted_ids())


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_never_ends_is_ended(make_server, wait_until, stream):
    server = make_server(request_timeout=0.3)
    server.behaviour.is_stalled = True
    answer = server.post(CHAT, {"messages": MESSAGES, "stream": stream})
    assert answer.status_code == (200 if stream else 504)
    assert '"code":"timeout"' in answer.text
    wait_until(lambda: server.scheduler.aborted_ids())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("by", ["x-request-id", "answer id", "all"])
def test_an_aborted_request_ends_with_an_error(server, wait_until, stream, by):
    server.behaviour.step_seconds = 0.01
    server.behaviour.tokens_of = lambda request, choice: [70] * 4000
    with ThreadPoolExecutor(1) as pool:
        body = {"messages": MESSAGES, "stream": stream}
        future = pool.submit(server.post, CHAT, body, headers={"X-Request-Id": "mine-1"})
        wait_until(lambda: server.scheduler.num_running == 1)
        answer_id = server.scheduler.requests()[0].request_id
        abort = {
            "all": {"abort_all": True},
            "answer id": {"request_id": answer_id},
            "x-request-id": {"rid": "mine-1"},
        }[by]
        assert server.post("/abort_request", abort).json() == {"aborted": 1}
        answer = future.result(5)
    assert answer.status_code == (200 if stream else 409)
    assert '"code":"request_aborted"' in answer.text


def test_requests_that_share_their_id_are_aborted_together(server, wait_until):
    server.behaviour.is_stalled = True
    with ThreadPoolExecutor(3) as pool:
        futures = [
            pool.submit(server.post, CHAT, {"messages": MESSAGES}, headers={"X-Request-Id": name})
            for name in ("same", "same", "other")
        ]
        wait_until(lambda: server.scheduler.num_running == 3)
        assert server.post("/abort_request", {"request_id": "same"}).json() == {"aborted": 2}
        assert [future.result(10).status_code for future in futures[:2]] == [409, 409]
        assert server.scheduler.num_running == 1
        assert server.post("/abort_request", {"request_id": "same"}).json() == {"aborted": 0}
        server.post("/abort_request", {"request_id": "other"})
    assert not server.context.running


def test_an_unknown_request_is_passed_on_because_another_process_may_hold_it(server, wait_until):
    assert server.post("/abort_request", {"request_id": "chatcmpl-elsewhere"}).json() == {"aborted": 0}
    wait_until(lambda: server.scheduler.aborted_ids() == {"chatcmpl-elsewhere"})


def test_a_malformed_message_of_the_scheduler_harms_nobody(server):
    import bench.fake_scheduler as fake

    real_encode = fake.encode
    calls = []

    def encode(message):
        calls.append(message)
        return b"\xc1garbage" if len(calls) == 1 else real_encode(message)

    fake.encode = encode
    try:
        with ThreadPoolExecutor(1) as pool:
            lost = pool.submit(server.post, "/flush_cache")
            time.sleep(0.1)
            assert server.post(CHAT, {"messages": MESSAGES, "max_tokens": 2}).status_code == 200
            assert lost.result(10).status_code == 504
    finally:
        fake.encode = real_encode


def test_a_slow_reader_holds_up_nobody(server):
    server.behaviour.tokens_of = lambda request, choice: [70] * 4000
    slow = open_and_leave(server, CHAT, {"messages": MESSAGES, "stream": True}, read_first=True)
    started = time.monotonic()
    assert server.post(CHAT, {"messages": MESSAGES, "max_tokens": 5}).status_code == 200
    assert time.monotonic() - started < 5.0
    slow.close()


def test_many_concurrent_streams_each_get_their_own_tokens(server):
    server.behaviour.tokens_of = lambda request, choice: [request.prompt_token_ids[0]] * 20
    letters = [chr(ord("a") + i) for i in range(16)]
    results = {}

    def ask(letter):
        results[letter] = server.post(TEXT, {"prompt": letter, "max_tokens": 20}).json()["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(letter,)) for letter in letters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == {letter: letter * 20 for letter in letters}

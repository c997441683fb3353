"""What a client may send on its connection: how much, how slowly, how far ahead; and that its end is always noticed."""

from __future__ import annotations

import contextlib
import json
import socket
import time

import pytest

from server.http.connection import MAX_AHEAD, MAX_HEADERS, limited

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n"
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3000, "ignore_eos": True}


@pytest.fixture(autouse=True)
def _short_linger(monkeypatch):
    monkeypatch.setattr("server.http.connection._LINGER_SECONDS", 0.2)


def connect(server, timeout=8.0):
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=timeout)


def post(path="/v1/chat/completions", **fields):
    body = json.dumps({**BODY, **fields}).encode()
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body)


def read_to_end(connection):
    """What comes until the server closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def read_answer(connection):
    """One answer, whose length its head tells."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(65536)
    length = int(answer.lower().split(b"content-length: ")[1].split(b"\r")[0])
    while len(answer.partition(b"\r\n\r\n")[2]) < length:
        answer += connection.recv(65536)
    return answer


def flood(connection, first, chunk, seconds=10.0):
    """Send ``chunk`` again and again until the server closes the connection; returns the bytes sent until then."""
    deadline, sent = time.monotonic() + seconds, 0
    connection.sendall(first)
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < deadline:
            connection.sendall(chunk)
            sent += len(chunk)
        pytest.fail("the connection was not closed")
    return sent


def error_of(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    return json.loads(body)["error"]


@pytest.mark.parametrize(
    "request_bytes",
    [
        HEALTH + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
        HEALTH + b"X: " + b"a" * 400_000,
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        HEALTH + b"".join(b"X%d: a\r\n" % i for i in range(MAX_HEADERS)) + b"\r\n",
    ],
    ids=["value", "without end", "path", "number"],
)
def test_too_many_headers_are_a_431(shared_server, request_bytes):
    with connect(shared_server) as connection:
        connection.sendall(request_bytes)
        answer = read_answer(connection)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert error_of(answer)["code"] == "headers_too_large"


def test_as_many_headers_as_are_allowed_are_read(shared_server):
    headers = b"".join(b"X%d: %s\r\n" % (i, b"a" * 500) for i in range(MAX_HEADERS - 1))
    with connect(shared_server) as connection:
        connection.sendall(HEALTH + headers + b"\r\n")
        assert read_answer(connection).startswith(b"HTTP/1.1 200 ")


CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "chunk"),
    [
        (HEALTH + b"X: ", b"a" * 100_000),
        (HEALTH, b"X: a\r\n" * 20_000),
        (CHUNKED + b"1\r\n{\r\n0\r\n", b"X: " + b"a" * 100_000 + b"\r\n"),
        (CHUNKED + b"1;a=", b"a" * 100_000),
        (b"", b"\r\n" * 50_000),
    ],
    ids=["value", "headers", "trailers", "chunk extension", "blank lines"],
)
def test_whoever_sends_headers_without_end_is_cut_off(shared_server, first, chunk):
    with connect(shared_server) as connection:
        flood(connection, first, chunk)
    assert shared_server.get("/health").status_code == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50,
        b"FOO / HTTP/1.1\r\nHost: x\r\n\r\n",
        CHUNKED + b"ZZ\r\n{}",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n{}",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %s2\r\n\r\n{}" % (b"0" * 5000),
    ],
)
def test_what_is_no_http_is_a_400_with_an_openai_body(shared_server, request_bytes):
    with connect(shared_server) as connection:
        connection.sendall(request_bytes)
        answer = read_answer(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert error_of(answer)["code"] == "invalid_http"


def test_requests_that_are_sent_ahead_are_answered_in_order(shared_server):
    paths = [b"/health", b"/nothing", b"/version"] * 10
    with connect(shared_server) as connection:
        connection.sendall(b"".join(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path for path in paths))
        connection.sendall(HEALTH + b"Connection: close\r\n\r\n")
        answer = read_to_end(connection)
    statuses = [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"404", b"200"] * 10 + [b"200"]


@pytest.mark.parametrize("first", [post(stream=True), post(), b""], ids=["streamed", "unstreamed", "alone"])
def test_whoever_sends_very_many_requests_ahead_is_cut_off(make_server, wait_until, first):
    server = make_server()
    server.behaviour.step_seconds = 0.02
    with connect(server) as connection:
        sent = flood(connection, first, (HEALTH + b"\r\n") * (MAX_AHEAD * 2))
    assert sent < 20_000_000  # what the sockets hold, and not read by the server
    wait_until(lambda: not server.scheduler.num_running)
    wait_until(lambda: not server.context.num_http_requests)


def test_a_large_body_that_is_sent_ahead_is_cut_off(make_server, wait_until):
    server = make_server()
    server.behaviour.step_seconds = 0.02
    with connect(server) as connection:
        flood(connection, post() + b"POST /tokenize HTTP/1.1\r\nContent-Length: 8000000\r\n\r\n", b" " * 100_000)
    wait_until(lambda: not server.scheduler.num_running)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_is_noticed_with_requests_waiting_behind_the_one_that_runs(
    make_server, wait_until, caplog, stream
):
    server = make_server()
    server.behaviour.step_seconds = 0.02
    with connect(server) as connection:
        connection.sendall(post(stream=stream))
        wait_until(lambda: server.scheduler.num_running == 1)
        connection.sendall(post(stream=stream) + HEALTH + b"\r\n")
        time.sleep(0.1)
    wait_until(lambda: not server.scheduler.num_running)
    wait_until(lambda: not server.context.num_http_requests)
    assert len(server.scheduler.requests()) == 1
    assert "Traceback" not in caplog.text
    assert b'status="disconnected"} 1.0' in server.get("/metrics").content.replace(b'method="POST",', b"")


@pytest.fixture(scope="module")
def impatient(start_server):
    with start_server(header_timeout=0.4, body_timeout=5.0) as server:
        yield server


@pytest.mark.parametrize(
    "beginning",
    [b"", b"\r\n", b"GET /hea", HEALTH + b"X-a: ", HEALTH + b"\r\n" + HEALTH],
    ids=["silent", "blank", "request line", "header", "second request"],
)
def test_headers_that_do_not_come_are_not_waited_for(impatient, beginning):
    with connect(impatient) as connection:
        connection.sendall(beginning)
        time.sleep(0.1)
        if beginning.count(b"GET") == 2:
            connection.sendall(b"X")
        started = time.monotonic()
        read_to_end(connection)
        assert time.monotonic() - started < 3.0


def test_a_slow_body_and_a_slow_answer_have_their_own_time(impatient):
    impatient.behaviour.step_seconds = 0.02
    try:
        request = post(max_tokens=50)
        with connect(impatient) as connection:
            connection.sendall(request[:-5])
            time.sleep(0.8)
            connection.sendall(request[-5:])
            assert read_answer(connection).startswith(b"HTTP/1.1 200 ")
    finally:
        impatient.behaviour.step_seconds = 0.0


def test_an_answer_that_nobody_reads_is_given_up(make_server, wait_until):
    server = make_server(write_timeout=0.5)
    server.behaviour.tokens_of = lambda request, choice: [70] * 1_000_000
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
        connection.sendall(post(stream=True, n=16))
        wait_until(lambda: server.context.num_http_requests == 1)
        wait_until(lambda: server.context.num_http_requests == 0, seconds=20)
    assert b'status="disconnected"' in server.get("/metrics").content


@pytest.mark.parametrize(("path", "status"), [(b"/v1/completions", b"413"), (b"/nothing", b"404")])
def test_a_body_that_nobody_wants_is_not_waited_for(shared_server, path, status):
    with connect(shared_server) as connection:
        connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 900000000\r\n\r\n{" % path)
        assert read_answer(connection).startswith(b"HTTP/1.1 %s " % status)
        started = time.monotonic()
        read_to_end(connection)
        assert time.monotonic() - started < 2.0


def test_a_refused_body_that_still_comes_leaves_the_connection_usable(shared_server):
    with connect(shared_server) as connection:
        connection.sendall(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n")
        assert read_answer(connection).startswith(b"HTTP/1.1 404 ")
        connection.sendall(b"{}" + HEALTH + b"\r\n")
        assert read_answer(connection).startswith(b"HTTP/1.1 200 ")
        time.sleep(0.4)
        connection.sendall(HEALTH + b"\r\n")
        assert read_answer(connection).startswith(b"HTTP/1.1 200 ")


def test_more_connections_than_files_may_be_open_are_refused_and_told_of(make_server, monkeypatch, caplog):
    few = limited(header_timeout=30.0, write_timeout=300.0, max_connections=3)
    monkeypatch.setattr("server.worker.limited", lambda **_: few)
    server = make_server()
    with contextlib.ExitStack() as stack:
        kept = [stack.enter_context(connect(server)) for _ in range(3)]
        for connection in kept:
            connection.sendall(HEALTH + b"\r\n")
            assert read_answer(connection).startswith(b"HTTP/1.1 200 ")
        for _ in range(5):
            assert read_to_end(stack.enter_context(connect(server))) == b""
    assert caplog.text.count("open files") == 1

"""The ROUTER socket against real DEALER sockets."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from scheduler.connection import Events, RouterConnection
from scheduler.messages import (
    AbortRequest,
    FromScheduler,
    Hello,
    StepOutput,
    ToScheduler,
    decode_from_scheduler,
    encode,
)


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/scheduler"


@pytest.fixture
def connection(endpoint: str) -> Iterator[RouterConnection]:
    connection = RouterConnection(endpoint)
    yield connection
    connection.close()


class Frontend:
    def __init__(self, endpoint: str) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.connect(endpoint)

    def send(self, message: ToScheduler) -> None:
        self.socket.send(encode(message))

    def receive(self) -> FromScheduler:
        assert self.socket.poll(5000)
        return decode_from_scheduler(self.socket.recv())

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def frontend(endpoint: str, connection: RouterConnection) -> Iterator[Frontend]:
    frontend = Frontend(endpoint)
    yield frontend
    frontend.close()


def test_messages_go_both_ways_and_keep_their_order(connection: RouterConnection, frontend: Frontend) -> None:
    sent = [Hello(), *(AbortRequest(request_id=str(index)) for index in range(100))]
    for message in sent:
        frontend.send(message)
    received: list[tuple[bytes, ToScheduler]] = []
    while len(received) < len(sent):
        received += connection.receive(None).messages
    assert [message for _, message in received] == sent
    client = received[0][0]
    connection.send(client, StepOutput(outputs=[]))
    assert frontend.receive() == StepOutput(outputs=[])
    assert connection.receive(0) == Events()


def test_malformed_frames_are_counted_and_do_no_harm(connection: RouterConnection, frontend: Frontend) -> None:
    frontend.socket.send(b"\xc1 nonsense")
    frontend.socket.send_multipart([encode(Hello()), encode(Hello())])
    frontend.socket.send(b"")
    frontend.send(Hello())
    received: list[tuple[bytes, ToScheduler]] = []
    while not received:
        received += connection.receive(None).messages
    assert [message for _, message in received] == [Hello()]
    assert connection.num_refused_frames == 3


def test_a_vanished_client_is_noticed_with_nothing_to_send(connection: RouterConnection, endpoint: str) -> None:
    gone, stays = Frontend(endpoint), Frontend(endpoint)
    gone.send(Hello())
    stays.send(Hello())
    clients: list[bytes] = []
    while len(clients) < 2:
        clients += [client for client, _ in connection.receive(None).messages]
    last_words = AbortRequest(request_id="a")
    gone.send(last_words)
    gone.close()
    messages: list[ToScheduler] = []
    vanished: list[bytes] = []
    deadline = time.monotonic() + 5
    while not vanished and time.monotonic() < deadline:
        events = connection.receive(0)
        messages += [message for _, message in events.messages]
        vanished = events.vanished
        time.sleep(0.01)
    assert len(vanished) == 1
    assert messages == [last_words]
    (left,) = set(clients) - set(vanished)
    connection.send(left, StepOutput(outputs=[]))
    assert stays.receive() == StepOutput(outputs=[])
    stays.close()


def test_a_wait_is_ended_by_an_interrupt_and_uses_no_cpu(endpoint: str) -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    connection = RouterConnection(endpoint, interrupt_fd=reader)
    threading.Timer(0.5, lambda: os.write(writer, b"x")).start()
    begin, cpu = time.monotonic(), time.thread_time()
    assert connection.receive(None) == Events()
    assert time.monotonic() - begin > 0.4
    assert time.thread_time() - cpu < 0.1
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    connection.close()
    os.close(reader)
    os.close(writer)


def test_a_client_that_never_reads_is_given_up_and_blocks_nobody(
    connection: RouterConnection, frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.connection.MAX_QUEUED_FRAMES", 50)
    frontend.send(Hello())
    ((client, _),) = connection.receive(None).messages
    message = AbortRequest(request_id="x" * 100_000)
    vanished: list[bytes] = []
    for _ in range(5000):
        connection.send(client, message)  # type: ignore[arg-type]
        vanished += connection.receive(0).vanished
        if vanished:
            break
    assert vanished == [client]

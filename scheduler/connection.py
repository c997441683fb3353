"""The scheduler's end of the sockets to the HTTP processes.

A ROUTER socket with ``ROUTER_MANDATORY``: sending to an HTTP process that is gone raises, and its requests are
aborted. So that this is noticed without anything to send, the socket's monitor reports every disconnect, and then an
empty message is sent to each HTTP process.
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from scheduler.messages import FromScheduler, MessageError, StepOutput, ToScheduler, decode_to_scheduler, encode

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_QUEUED_FRAMES = 10_000
"""Frames kept for an HTTP process that does not read; one more and it counts as gone."""
_MAX_RECEIVED = 1024
_PROBES = 3
"""A disconnect is reported a moment before the address stops working, so it is probed for a few steps."""


class Events(msgspec.Struct, frozen=True, array_like=True):
    """What one turn of the loop takes in, in this order."""

    is_draining: bool = False
    """The process was told to leave when its requests are over."""
    messages: list[tuple[bytes, ToScheduler]] = []
    vanished: list[bytes] = []
    """Clients found gone since the last turn; what they said last is among the messages."""


class Connection(Protocol):
    """Messages from and to the HTTP processes, known by address."""

    def receive(self, timeout: float | None) -> Events:
        """What has come. Blocks for something to come, or another awaited event, at most that many seconds.

        0 does not block; ``None`` sets no limit.
        """

    def send(self, client: bytes, message: FromScheduler) -> None:
        """Never blocks and never raises for a client that is gone: it has vanished at the next :meth:`receive`."""

    def broadcast(self, message: FromScheduler) -> None:
        """Send to every client."""

    @property
    def num_refused_frames(self) -> int: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Client:
    unsent: deque[bytes] = field(default_factory=deque)


class RouterConnection:
    """Binds ``endpoint``.

    Parameters
    ----------
    endpoint
        ZMQ address.
    interrupt_fd
        A non-blocking descriptor that ends a wait when it is readable, and is emptied here.
    wake_fds
        Further descriptors that end a wait; their owners empty them.
    """

    def __init__(self, endpoint: str, *, interrupt_fd: int | None = None, wake_fds: Sequence[int] = ()) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # An HTTP process that comes back under its old address takes it over; its Hello ends what it asked before.
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.bind(endpoint)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._interrupt_fd = interrupt_fd
        for fd in wake_fds if interrupt_fd is None else (interrupt_fd, *wake_fds):
            self._poller.register(fd, zmq.POLLIN)
        self._clients: dict[bytes, _Client] = {}
        self._vanished: list[bytes] = []
        self._probes_left = 0
        self._num_refused_frames = 0

    @property
    def num_refused_frames(self) -> int:
        return self._num_refused_frames

    def receive(self, timeout: float | None) -> Events:
        if timeout != 0 and not self._vanished:
            if self._probes_left or self._has_unsent():
                # Something is still to be retried.
                timeout = min(0.1, timeout) if timeout is not None else 0.1
            events = dict(self._poller.poll(None if timeout is None else math.ceil(timeout * 1000)))
            if self._interrupt_fd is not None and self._interrupt_fd in events:
                os.read(self._interrupt_fd, 4096)
        self._watch_disconnects()
        self._retry_unsent()
        vanished, self._vanished = self._vanished, []
        messages: list[tuple[bytes, ToScheduler]] = []
        while len(messages) < _MAX_RECEIVED:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            message = self._decode(frames)
            if message is not None:
                self._clients.setdefault(frames[0], _Client())
                messages.append((frames[0], message))
        return Events(messages=messages, vanished=vanished)

    def send(self, client: bytes, message: FromScheduler) -> None:
        state = self._clients.get(client)
        if state is None:
            return
        if len(state.unsent) >= MAX_QUEUED_FRAMES:
            logger.warning("HTTP process %s does not read its messages: it counts as gone", client.hex())
            self._lose(client)
            return
        state.unsent.append(encode(message))
        self._send_unsent(client, state)

    def broadcast(self, message: FromScheduler) -> None:
        for client in list(self._clients):
            self.send(client, message)

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
        self._context.term()

    def _decode(self, frames: list[bytes]) -> ToScheduler | None:
        try:
            if len(frames) != 2:
                raise MessageError(f"{len(frames) - 1} frames instead of one")
            return decode_to_scheduler(frames[1])
        except MessageError as error:
            self._num_refused_frames += 1
            logger.warning("a frame from %s was refused: %s", frames[0].hex(), error)
            return None

    def _watch_disconnects(self) -> None:
        while self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            self._probes_left = _PROBES
        if self._probes_left:
            self._probes_left -= 1
            self.broadcast(StepOutput(outputs=[]))

    def _has_unsent(self) -> bool:
        return any(state.unsent for state in self._clients.values())

    def _retry_unsent(self) -> None:
        for client, state in list(self._clients.items()):
            if state.unsent:
                self._send_unsent(client, state)

    def _send_unsent(self, client: bytes, state: _Client) -> None:
        try:
            while state.unsent:
                self._socket.send_multipart([client, state.unsent[0]], zmq.NOBLOCK)
                state.unsent.popleft()
        except zmq.Again:
            return
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._lose(client)

    def _lose(self, client: bytes) -> None:
        del self._clients[client]
        self._vanished.append(client)

"""What a child process tells the supervisor over its pipe: one msgpack array a message."""

from __future__ import annotations

import os
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import msgspec


@dataclass(frozen=True)
class Loading:
    """A step of starting, and how much of it is done, from 0 to 1."""

    stage: str
    fraction: float


@dataclass(frozen=True)
class Ready:
    """The process serves."""

    summary: str


@dataclass(frozen=True)
class Failed:
    """The process gives up; the message is for a person."""

    message: str


@dataclass(frozen=True)
class Alive:
    """The process still does its work: sent every few seconds."""


Status = Loading | Ready | Failed | Alive


class StatusPipe(Connection):
    """The child's end: what is sent travels as msgpack, not as pickle."""

    @classmethod
    def take_over(cls, connection: Connection) -> StatusPipe:
        """Go on with the descriptor of ``connection``, which is closed."""
        pipe = cls(os.dup(connection.fileno()), readable=False)
        connection.close()
        return pipe

    def send(self, obj: Any) -> None:
        """Send one tuple, such as ``("progress", stage, fraction)``."""
        self.send_bytes(msgspec.msgpack.encode(obj))


def decode_status(frame: bytes) -> Status:
    """Raises :class:`ValueError` for anything but ``[kind, ...]`` of a known kind."""
    match msgspec.msgpack.decode(frame):
        case ["progress", str(stage), float() | int() as fraction]:
            return Loading(stage, float(fraction))
        case ["ready"]:
            return Ready("")
        case ["ready", str(summary)]:
            return Ready(summary)
        case ["alive"]:
            return Alive()
        case ["failed", str(message)]:
            return Failed(message)
        case other:
            raise ValueError(f"not a status message: {other!r}")

"""Server-sent events out of stamped bytes.

Follows "9.2.6 Interpreting an event stream" of the HTML standard, less reconnection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

Piece = tuple[float, bytes]
"""Seconds of a monotonic clock, and the bytes received then."""


@dataclass(frozen=True)
class Event:
    stamp: float
    """Arrival of the bytes that completed the event."""
    name: str
    data: str


def read_events(pieces: Iterable[Piece]) -> Iterator[Event]:
    """Yield the complete events of a stream; one that its end cuts off is not among them.

    Raises
    ------
    UnicodeDecodeError
        When a complete line is not UTF-8.
    """
    name = ""
    data: list[str] = []
    for stamp, line in _lines(pieces):
        if not line:
            if data:
                yield Event(stamp, name or "message", "\n".join(data))
            name, data = "", []
            continue
        label, _, value = line.decode("utf-8").partition(":")
        value = value.removeprefix(" ")
        if label == "data":
            data.append(value)
        elif label == "event":
            name = value


def _lines(pieces: Iterable[Piece]) -> Iterator[tuple[float, bytes]]:
    rest = b""
    for stamp, received in pieces:
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            yield stamp, line.removesuffix(b"\r")

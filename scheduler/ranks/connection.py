"""The scheduler's connection where many ranks run its loop: what rank 0 takes in, every rank takes in.

One blob of msgpack for each turn of the loop. On rank 0 too nothing counts that is not in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from model_runner.errors import RankError
from scheduler.connection import Connection, Events
from scheduler.messages import FromScheduler

if TYPE_CHECKING:
    from model_runner.ranks import Ranks

TICK_SECONDS = 1.0
"""Longest that rank 0 lets the others wait for a blob: while they do, they handle no signal, and a rank that died is
found by the next one."""


class RankDivergedError(RankError):
    """A rank's requests are not those of rank 0: going on would compute nonsense, or wait for ever."""


class _Blob(msgspec.Struct, frozen=True, array_like=True):
    fingerprint: int
    """Of rank 0's requests as the events found them."""
    events: Events


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Blob).decode


class LeadingConnection:
    """Rank 0's: talks to the HTTP processes, and tells the other ranks what they say.

    Parameters
    ----------
    router
        To the HTTP processes.
    """

    def __init__(self, router: Connection, ranks: Ranks) -> None:
        self.fingerprint: Callable[[], int] = lambda: 0
        """Set once there is a scheduler: see :meth:`scheduler.loop.Scheduler.fingerprint`."""
        self._router = router
        self._ranks = ranks
        self._is_draining = False

    @property
    def num_refused_frames(self) -> int:
        return self._router.num_refused_frames

    def drain(self) -> None:
        """From a signal handler: every rank hears of it at the same turn."""
        self._is_draining = True

    def receive(self, timeout: float | None) -> Events:
        events = self._router.receive(TICK_SECONDS if timeout is None else min(timeout, TICK_SECONDS))
        events = msgspec.structs.replace(events, is_draining=self._is_draining)
        self._ranks.broadcast_bytes(_encode(_Blob(self.fingerprint(), events)))
        return events

    def send(self, client: bytes, message: FromScheduler) -> None:
        self._router.send(client, message)

    def broadcast(self, message: FromScheduler) -> None:
        self._router.broadcast(message)

    def close(self) -> None:
        self._router.close()


class FollowingConnection:
    """Every other rank's: waits for rank 0, and says nothing."""

    num_refused_frames = 0

    def __init__(self, ranks: Ranks) -> None:
        self.fingerprint: Callable[[], int] = lambda: 0
        """As in :class:`LeadingConnection`."""
        self._ranks = ranks

    def receive(self, timeout: float | None) -> Events:
        """Raises :class:`RankDivergedError` where this rank's requests have come out differently."""
        blob = _decode(self._ranks.broadcast_bytes())
        if blob.fingerprint != self.fingerprint():
            raise RankDivergedError(f"the requests of rank {self._ranks.rank} are no longer those of rank 0")
        return blob.events

    def drain(self) -> None:
        """Rank 0 says when."""

    def send(self, client: bytes, message: FromScheduler) -> None:
        """Rank 0 says it."""

    def broadcast(self, message: FromScheduler) -> None:
        """Rank 0 says it."""

    def close(self) -> None:
        """Nothing is open."""

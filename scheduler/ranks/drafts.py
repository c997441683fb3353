"""Guesses that only rank 0 makes: a draft model's come from floating point, so every rank takes rank 0's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from scheduler.drafters.contained import ContainedSource
from scheduler.drafters.source import DraftSource

if TYPE_CHECKING:
    from model_runner.ranks import Ranks
    from scheduler.requests.request import Request

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, ...]]).decode


class SharedDrafts(DraftSource):
    """A source of rank 0 on every rank: its guesses for all requests of a step cross in one broadcast.

    Parameters
    ----------
    source
        On rank 0; the others have none.
    max_tokens
        Longest draft.
    """

    def __init__(self, name: str, source: DraftSource | None, ranks: Ranks, max_tokens: int) -> None:
        self.name = name
        # Contained here too: a fault on rank 0 must not keep it from the broadcast that the others wait in.
        self._source = None if source is None else ContainedSource(source)
        self._ranks = ranks
        self._max_tokens = max_tokens
        self._drafts: dict[int, tuple[int, tuple[int, ...]]] = {}
        """By request: how many tokens it had when they were guessed, and the guesses."""

    def prepare(self, requests: Sequence[Request]) -> None:
        guesses: list[tuple[int, ...]] = []
        if self._source is not None:
            self._source.prepare(requests)
            guesses = [tuple(self._source.propose(request, (), self._max_tokens)) for request in requests]
        guesses = _decode(self._ranks.broadcast_bytes(_encode(guesses)))
        for request, drafts in zip(requests, guesses, strict=True):
            self._drafts[request.key] = len(request.token_ids), drafts

    def propose(self, request: Request, behind: tuple[int, ...], max_tokens: int) -> Sequence[int]:
        num_known, drafts = self._drafts.get(request.key, (-1, ()))
        if num_known != len(request.token_ids) or drafts[: len(behind)] != behind:
            return ()
        return drafts[len(behind) :][:max_tokens]

    def verified(self, request: Request, num_proposed: int, num_accepted: int) -> None:
        if self._source is not None:
            self._source.verified(request, num_proposed, num_accepted)

    def remove(self, request: Request) -> None:
        self._drafts.pop(request.key, None)
        if self._source is not None:
            self._source.remove(request)

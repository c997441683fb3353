"""All schedulers of the server as one: places requests on the groups of ranks, and leaves out a group that is gone.

A request goes where the longest beginning of its prompt should be cached, unless that group is so much busier than
another that computing the beginning again is the lesser evil.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from scheduler.messages import GenerateRequest, SchedulerReady, SchedulerStats
from server.engine.client import EngineClient
from server.engine.prefix_view import block_keys
from server.engine.submission import Submission
from server.errors import ApiError, UnavailableError

CHOICE_TOKENS = 64
"""Prompt tokens whose computing is taken to be worth as much as one running choice less in the batch."""


class Engine:
    """Sends requests to the schedulers and hands their answers to whoever waits for them.

    Parameters
    ----------
    endpoints
        ZMQ address of each group's scheduler.
    call_timeout, retry_after, scheduler_timeout
        As for :class:`EngineClient`.
    """

    def __init__(
        self, endpoints: Sequence[str], *, call_timeout: float, retry_after: int, scheduler_timeout: float
    ) -> None:
        self.groups = [
            EngineClient(
                "the scheduler" if len(endpoints) == 1 else f"scheduler-{index}",
                endpoint,
                call_timeout=call_timeout,
                retry_after=retry_after,
                scheduler_timeout=scheduler_timeout,
            )
            for index, endpoint in enumerate(endpoints)
        ]

    @property
    def ready(self) -> SchedulerReady | None:
        """What the group with the least room said of itself; ``None`` while none is there."""
        there = [group.ready for group in self.groups if group.ready is not None]
        return min(there, key=lambda ready: ready.kv_cache_tokens, default=None)

    @property
    def num_requests(self) -> int:
        return sum(group.num_requests for group in self.groups)

    def start(self) -> None:
        """Connect, from inside the event loop."""
        for group in self.groups:
            group.start()

    async def close(self) -> None:
        """Fail what still waits and close the sockets."""
        for group in self.groups:
            await group.close()

    def submit(self, requests: Sequence[GenerateRequest], *, timeout: float) -> Submission:
        """Send the requests of one HTTP request, each to the group where it is best off.

        Parameters
        ----------
        timeout
            Seconds until the last token.

        Raises
        ------
        UnavailableError
            No scheduler is ready.
        """
        submission = Submission(requests, abort=self.abort, forget=self._forget)
        try:
            for request in requests:
                self._place(request, submission)
        except UnavailableError:
            submission.close()
            raise
        submission.expire_after(timeout)
        return submission

    def abort(self, request_id: str | None) -> None:
        """Ask the schedulers to stop a request by any of its names, or all; nothing happens where it is unknown."""
        for group in self.groups:
            group.abort(request_id)

    def fail_all(self, error: ApiError) -> None:
        """End every waiting request and call with ``error``."""
        for group in self.groups:
            group.fail_all(error)

    async def stats(self) -> list[SchedulerStats | None]:
        """Counters and gauges of each group; ``None`` for one that is not there."""
        return await asyncio.gather(*(self._stats_of(group) for group in self.groups))

    async def flush_cache(self) -> int:
        """Drop every unreferenced page of the prefix caches; returns the tokens that freed.

        Raises
        ------
        UnavailableError
            No scheduler is ready.
        """
        ready = [group for group in self.groups if group.ready is not None]
        if not ready:
            raise self.groups[0].unavailable()
        flushed = await asyncio.gather(*(group.flush_cache() for group in ready))
        return sum(answer.freed_tokens for answer in flushed)

    def _place(self, request: GenerateRequest, submission: Submission) -> None:
        if len(self.groups) == 1:
            self.groups[0].submit(request, submission)
            return
        keys = block_keys(request.prompt_token_ids)
        for group in sorted(self.groups, key=lambda group: _cost(group, keys)):
            try:
                group.submit(request, submission)
            except UnavailableError:
                continue  # gone; nothing was sent
            group.prefixes.add(keys)
            return
        raise self.groups[0].unavailable()

    def _forget(self, request_id: str) -> None:
        for group in self.groups:
            group.forget(request_id)

    @staticmethod
    async def _stats_of(group: EngineClient) -> SchedulerStats | None:
        try:
            return await group.stats()
        except ApiError:
            return None


def _cost(group: EngineClient, keys: Sequence[int]) -> tuple[int, int]:
    """Lower is better; among equals the group that was given less so far, so that the caches fill evenly."""
    busy = CHOICE_TOKENS * group.num_choices
    return busy - group.prefixes.matched_tokens(keys), len(group.prefixes)

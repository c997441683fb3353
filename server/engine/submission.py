"""What one HTTP request waits for: the scheduler's answers to all of its prompts, in one queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from scheduler.messages import ChoiceOutput, GenerateRequest, GrammarReport, PromptLogprobs
from server.errors import ClientDisconnectedError, TimedOutError

Event = ChoiceOutput | PromptLogprobs


class Submission:
    """The prompts of one HTTP request at the scheduler.

    Made by :meth:`server.engine.copies.Engine.submit`. One task waits on it; the engine clients push.

    Parameters
    ----------
    requests
        One for each prompt, in order.
    abort
        Tells the scheduler to stop a request.
    forget
        Tells the engine that nothing more is wanted of a request.
    """

    def __init__(
        self,
        requests: Sequence[GenerateRequest],
        *,
        abort: Callable[[str], None],
        forget: Callable[[str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._abort = abort
        self._forget = forget
        self._prompt_index = {request.request_id: index for index, request in enumerate(requests)}
        self._unfinished = {request.request_id: request.sampling.n for request in requests}
        self._unadmitted = set(self._unfinished)
        self.grammar: GrammarReport | None = None
        """Known once admitted."""
        self._events: list[tuple[int, Event]] = []
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._deadline: asyncio.TimerHandle | None = None

    async def admitted(self, timeout: float) -> None:
        """Wait until every prompt is admitted; whatever the scheduler refuses is raised.

        Raises
        ------
        ApiError
            The scheduler's rejection, its end, or no answer in ``timeout`` seconds.
        ClientDisconnectedError
        """
        expiry = self._loop.call_later(
            timeout, self.fail, TimedOutError(f"The request was not admitted within {timeout:g} seconds.")
        )
        try:
            while self._unadmitted and self._error is None:
                await self._wait()
        finally:
            expiry.cancel()
        if self._error is not None:
            raise self._error

    async def next(self) -> list[tuple[int, Event]]:
        """What has come since the last call, as (prompt index, event), waiting for something; empty at the end.

        Raises
        ------
        ApiError
            After everything that came before it.
        ClientDisconnectedError
            At once.
        """
        while not self._events:
            if self._error is not None:
                raise self._error
            if not self._unfinished:
                return []
            await self._wait()
        if isinstance(self._error, ClientDisconnectedError):
            raise self._error
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Abort what still runs. Always called, whichever way the request ended."""
        if self._deadline is not None:
            self._deadline.cancel()
        for request_id in self._unfinished:
            self._forget(request_id)
            self._abort(request_id)
        self._unfinished.clear()

    def disconnect(self) -> None:
        """The client has left."""
        self.fail(ClientDisconnectedError())

    def expire_after(self, seconds: float) -> None:
        """End with an error unless finished in ``seconds``."""
        error = TimedOutError(f"The request did not finish within {seconds:g} seconds.")
        self._deadline = self._loop.call_later(seconds, self.fail, error)

    # called by the engine client

    def admit(self, request_id: str, grammar: GrammarReport | None = None) -> None:
        self._unadmitted.discard(request_id)
        if self.grammar is None:  # the prompts of one request share theirs: what the first waited for counts
            self.grammar = grammar
        if not self._unadmitted:
            self._wake()

    def push_output(self, output: ChoiceOutput) -> None:
        self._events.append((self._prompt_index[output.request_id], output))
        if output.finish is not None:
            self._unfinished[output.request_id] -= 1
            if not self._unfinished[output.request_id]:
                self.ended(output.request_id)
                self._forget(output.request_id)
        self._wake()

    def push_prompt_logprobs(self, message: PromptLogprobs) -> None:
        self._events.append((self._prompt_index[message.request_id], message))
        self._wake()

    def ended(self, request_id: str) -> None:
        """Nothing more will come for this prompt, and there is nothing to abort."""
        self._unfinished.pop(request_id, None)

    def fail(self, error: Exception) -> None:
        """End with ``error``; the first one counts."""
        if self._error is None:
            self._error = error
            self._wake()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

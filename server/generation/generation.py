"""One HTTP request while its tokens are generated: admission, the client's presence, the clocks, and the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence, Set

import msgspec
from starlette.types import Receive, Scope

from scheduler.messages import ChoiceOutput, GenerateRequest, PromptLogprobs
from server.context import ServerContext
from server.engine.submission import Submission
from server.errors import RequestAbortedError
from server.generation.choices import ChoiceAssembler, ChoiceDelta, CollectedChoice
from server.metrics.request_record import record_of


class Generation:
    """Admitted prompts and their choices, numbered through: ``prompt index * n + choice index``.

    Made by :func:`start_generation`; whoever holds it calls :meth:`close`.
    """

    def __init__(
        self,
        context: ServerContext,
        scope: Scope,
        submission: Submission,
        watcher: asyncio.Task[None],
        assemblers: Sequence[ChoiceAssembler],
        running_ids: Set[str],
        *,
        n: int,
        is_streamed: bool,
    ) -> None:
        self._context = context
        self._record = record_of(scope)
        self._submission = submission
        self._watcher = watcher
        self._running_ids = running_ids
        self._n = n
        self.is_streamed = is_streamed
        self._last_token: list[float | None] = [None] * len(assemblers)
        self.assemblers = assemblers

    @property
    def unenforced(self) -> tuple[str, ...]:
        """JSON pointers of what the request's form asks for and nothing enforces."""
        grammar = self._submission.grammar
        return () if grammar is None else grammar.unenforced

    async def next(self) -> list[tuple[int, ChoiceDelta | PromptLogprobs]]:
        """What has come since the last call: (choice, delta) or (prompt, its log-probabilities); empty at the end.

        Raises
        ------
        ApiError
        ClientDisconnectedError
        """
        events = await self._submission.next()
        now = time.perf_counter()
        deltas: list[tuple[int, ChoiceDelta | PromptLogprobs]] = []
        for prompt_index, event in events:
            if isinstance(event, ChoiceOutput):
                index = prompt_index * self._n + event.choice_index
                deltas.append((index, self.assemblers[index].add(event)))
                self._count(index, event, now)
            else:
                deltas.append((prompt_index, event))
        return deltas

    async def collect(self, on_prompt_logprobs: Callable[[int, PromptLogprobs], None]) -> list[CollectedChoice]:
        """Every choice, once all have ended."""
        choices = [CollectedChoice() for _ in self.assemblers]
        while deltas := await self.next():
            for index, delta in deltas:
                if isinstance(delta, PromptLogprobs):
                    on_prompt_logprobs(index, delta)
                    continue
                choice = choices[index]
                choice.text += delta.text
                choice.token_ids += delta.token_ids
                choice.logprobs += delta.logprobs
                choice.finish = delta.finish
        return choices

    def close(self) -> None:
        """Abort what still runs and stop watching the client."""
        self._watcher.cancel()
        self._submission.close()
        running = self._context.running
        for running_id in self._running_ids:
            of_that_id = running.get(running_id, set())
            of_that_id.discard(self._submission)
            if not of_that_id:
                running.pop(running_id, None)

    def _count(self, index: int, output: ChoiceOutput, now: float) -> None:
        record, metrics = self._record, self._context.metrics
        if output.finish is not None and output.finish.reason == "abort":
            raise RequestAbortedError("The request was aborted.")
        num_tokens = len(output.token_ids)
        record.completion_tokens += num_tokens
        if not num_tokens or not self.is_streamed:
            return  # an unstreamed answer's tokens may all come at its end: they say nothing of time
        last = self._last_token[index]
        if last is not None:
            metrics.inter_token.observe(now - last)
        elif record.first_token is None:
            record.first_token = now
        self._last_token[index] = now


async def start_generation(
    context: ServerContext,
    scope: Scope,
    receive: Receive,
    *,
    answer_id: str,
    requests: Sequence[GenerateRequest],
    assemblers: Sequence[ChoiceAssembler],
) -> Generation:
    """Submit ``requests`` and wait until all are admitted; only then may a status line be sent.

    Raises
    ------
    ApiError
        The scheduler refused a prompt, went away or did not answer.
    ClientDisconnectedError
    """
    record = record_of(scope)
    record.prompt_tokens = sum(len(request.prompt_token_ids) for request in requests)
    requests = [msgspec.structs.replace(request, client_request_id=record.request_id) for request in requests]
    submission = context.engine.submit(requests, timeout=context.config.request_timeout)
    running_ids = {answer_id, record.request_id}
    for running_id in running_ids:
        context.running.setdefault(running_id, set()).add(submission)
    generation = Generation(
        context,
        scope,
        submission,
        asyncio.create_task(_watch_client(receive, submission), name="client-watch"),
        assemblers,
        running_ids,
        n=requests[0].sampling.n,
        is_streamed=requests[0].stream,
    )
    try:
        await submission.admitted(context.config.first_answer_timeout)
    except BaseException:
        generation.close()
        raise
    context.metrics.prompt_tokens.inc(record.prompt_tokens)
    record.grammar = submission.grammar
    if record.grammar is not None:
        backend = record.grammar.backend or "other"
        context.metrics.grammar_wait.labels(backend).observe(record.grammar.queue_seconds)
    return generation


async def _watch_client(receive: Receive, submission: Submission) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            submission.disconnect()
            return

"""The HTTP process's end of the ZMQ connection to one scheduler.

One DEALER socket. A socket monitor tells at once when the scheduler goes: every waiting request then fails, and after
the reconnect the handshake starts anew. Nothing is ever queued for a scheduler that is not there.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any, cast

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from scheduler.messages import (
    AbortRequest,
    Admitted,
    CacheFlushed,
    Failed,
    FlushCache,
    FromScheduler,
    GenerateRequest,
    GetStats,
    Hello,
    MessageError,
    PromptLogprobs,
    Rejected,
    SchedulerReady,
    SchedulerStats,
    StepOutput,
    ToScheduler,
    decode_from_scheduler,
    encode,
)
from server.engine.prefix_view import PrefixView
from server.engine.silence import Silence
from server.engine.submission import Submission
from server.errors import ApiError, SchedulerError, TimedOutError, UnavailableError

logger = logging.getLogger("scansion.engine")

_HELLO_INTERVAL = 2.0  # seconds until an unanswered Hello is repeated


class EngineClient:
    """Sends requests to one scheduler and hands its answers to whoever waits for them.

    Parameters
    ----------
    name
        What the log calls the scheduler.
    endpoint
        ZMQ address the scheduler binds.
    call_timeout
        Seconds a flush or a look at the counters may take.
    retry_after
        Seconds a client that came at a bad moment is told to wait.
    scheduler_timeout
        Seconds of silence after which a scheduler that is still there counts as gone.
    """

    def __init__(
        self, name: str, endpoint: str, *, call_timeout: float, retry_after: int, scheduler_timeout: float
    ) -> None:
        self.name = name
        self._endpoint = endpoint
        self._call_timeout = call_timeout
        self._retry_after = retry_after
        self._silence = Silence(scheduler_timeout)
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)  # send only to a peer that is there
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)  # a dropped frame would be lost tokens
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        self._submissions: dict[str, Submission] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_ids = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []
        self._hello: asyncio.TimerHandle | None = None
        self.ready: SchedulerReady | None = None
        """What the scheduler said of itself; ``None`` while it is not there."""
        self.num_choices = 0
        """Choices of the requests that this process has there."""
        self._num_choices: dict[str, int] = {}
        self._boot_id = ""
        self.prefixes = PrefixView(0)
        """What its prefix cache should hold."""

    @property
    def num_requests(self) -> int:
        return len(self._submissions)

    def start(self) -> None:
        """Connect, from inside the event loop."""
        monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._tasks = [
            asyncio.create_task(self._watch(monitor), name="scheduler-monitor"),
            asyncio.create_task(self._receive(), name="scheduler-receive"),
            asyncio.create_task(self._watch_silence(), name="scheduler-silence"),
        ]
        self._socket.connect(self._endpoint)

    async def close(self) -> None:
        """Fail what still waits and close the socket."""
        self.fail_all(UnavailableError("The server is shutting down."))
        if self._hello is not None:
            self._hello.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.disable_monitor()
        self._context.destroy(linger=0)

    def submit(self, request: GenerateRequest, submission: Submission) -> None:
        """Send a request whose answers go to ``submission``.

        Raises
        ------
        UnavailableError
            The scheduler is not ready.
        """
        if self.ready is None:
            raise self.unavailable()
        self._send(request)
        self._submissions[request.request_id] = submission
        self._num_choices[request.request_id] = request.sampling.n
        self.num_choices += request.sampling.n

    def forget(self, request_id: str) -> None:
        """Nothing more is wanted of a request."""
        if self._submissions.pop(request_id, None) is not None:
            self.num_choices -= self._num_choices.pop(request_id)

    def abort(self, request_id: str | None) -> None:
        """Ask the scheduler to stop a request, or all; nothing happens when it is unknown or the scheduler is gone."""
        if self.ready is not None:
            try:
                self._send(AbortRequest(request_id=request_id))
            except UnavailableError:
                logger.info("scheduler left before the abort of %s; its requests are over anyway", request_id or "all")

    def fail_all(self, error: ApiError) -> None:
        """End every waiting request and call with ``error``."""
        for submission in set(self._submissions.values()):
            submission.fail(error)
        for request_id in list(self._submissions):
            self.forget(request_id)
        for future in self._calls.values():
            if not future.done():
                future.set_exception(error)
        self._calls.clear()

    async def stats(self) -> SchedulerStats:
        """The scheduler's counters and gauges."""
        answer: SchedulerStats = await self._call(lambda call_id: GetStats(call_id=call_id))
        return answer

    async def flush_cache(self) -> CacheFlushed:
        """Drop every unreferenced page of the prefix cache."""
        answer: CacheFlushed = await self._call(lambda call_id: FlushCache(call_id=call_id))
        self.prefixes.clear()
        return answer

    async def _call(self, make: Callable[[int], ToScheduler]) -> Any:
        if self.ready is None:
            raise self.unavailable()
        call_id = next(self._call_ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            self._send(make(call_id))
            return await asyncio.wait_for(future, self._call_timeout)
        except asyncio.TimeoutError as error:
            raise TimedOutError(f"The scheduler did not answer within {self._call_timeout:g} seconds.") from error
        finally:
            self._calls.pop(call_id, None)

    def _send(self, message: ToScheduler) -> None:
        # With DONTWAIT pyzmq sends before it returns, so the future it gives is already done.
        sent = cast("asyncio.Future[Any]", self._socket.send(encode(message), zmq.DONTWAIT))
        error = sent.exception()
        if isinstance(error, zmq.Again):
            raise self.unavailable()
        if error is not None:
            raise error

    def unavailable(self) -> UnavailableError:
        """What is said while the scheduler is not there."""
        return UnavailableError(
            "The model is not ready: the scheduler is starting or was restarted. Try again shortly.",
            headers={"Retry-After": str(self._retry_after)},
        )

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        while True:
            event = parse_monitor_message(await monitor.recv_multipart())["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._say_hello()
            elif event == zmq.EVENT_DISCONNECTED:
                self._lost("gone", "The scheduler process ended while the request was running. Try again shortly.")

    async def _watch_silence(self) -> None:
        while True:
            await asyncio.sleep(self._silence.interval)
            if self._silence.is_too_long() and self.ready is not None:
                seconds = f"{self._silence.limit:g}"
                self._lost(
                    f"silent for {seconds} s (--scheduler-timeout)",
                    f"The scheduler did not answer for {seconds} seconds. Try again shortly.",
                )
                self._say_hello()  # answered as soon as it does something again

    def _say_hello(self) -> None:
        if self.ready is not None:
            return
        try:
            self._send(Hello())
        except UnavailableError:
            return  # gone again already: the next handshake says hello
        self._hello = asyncio.get_running_loop().call_later(_HELLO_INTERVAL, self._say_hello)

    def _lost(self, what: str, reason: str) -> None:
        if self._hello is not None:
            self._hello.cancel()
        if self.ready is not None:
            logger.error("%s is %s; requests that end with an error: %d", self.name, what, len(self._submissions))
        self.ready = None
        self.fail_all(UnavailableError(reason, headers={"Retry-After": str(self._retry_after)}))

    async def _receive(self) -> None:
        while True:
            frame = await self._socket.recv()
            self._silence.heard()
            try:
                message = decode_from_scheduler(frame)
            except MessageError as error:
                logger.error("the scheduler sent a malformed message: %s", error)
                continue
            self._dispatch(message)

    def _dispatch(self, message: FromScheduler) -> None:
        if isinstance(message, StepOutput):
            for output in message.outputs:
                submission = self._submissions.get(output.request_id)
                if submission is not None:
                    submission.push_output(output)
        elif isinstance(message, (Admitted, Rejected, PromptLogprobs, Failed)):
            self._dispatch_to_request(message)
        elif isinstance(message, SchedulerReady):
            if self._hello is not None:
                self._hello.cancel()
            self._welcome(message)
        else:
            future = self._calls.get(message.call_id)
            if future is not None and not future.done():
                future.set_result(message)

    def _welcome(self, ready: SchedulerReady) -> None:
        self.ready = ready
        if ready.boot_id != self._boot_id:
            self._boot_id = ready.boot_id
            self.prefixes = PrefixView(ready.kv_cache_tokens)
        logger.debug("%s is ready (boot %s)", self.name, ready.boot_id)

    def _dispatch_to_request(self, message: Admitted | Rejected | PromptLogprobs | Failed) -> None:
        submission = self._submissions.get(message.request_id)
        if submission is None:
            return  # its client has left
        if isinstance(message, Admitted):
            submission.admit(message.request_id, message.grammar)
        elif isinstance(message, PromptLogprobs):
            submission.push_prompt_logprobs(message)
        else:
            self.forget(message.request_id)
            submission.ended(message.request_id)
            submission.fail(SchedulerError(message.error, retry_after=self._retry_after))

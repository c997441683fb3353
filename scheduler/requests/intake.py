"""What HTTP processes ask for: requests are checked, wait for their grammar, are admitted, and may be aborted."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from constrained.errors import reraise_exit
from scheduler.config import SchedulerConfig
from scheduler.connection import Connection
from scheduler.interfaces import Drafter
from scheduler.messages import (
    PROTOCOL_VERSION,
    Admitted,
    ErrorInfo,
    GenerateRequest,
    GrammarReport,
    Hello,
    Rejected,
    SchedulerReady,
)
from scheduler.requests import admission
from scheduler.requests.admission import ServingLimits
from scheduler.requests.live_requests import LiveRequests
from scheduler.requests.request import RequestGroup, make_choices, make_group

if TYPE_CHECKING:
    from constrained.queue.manager import GrammarManager

logger = logging.getLogger(__name__)


def random_seed() -> int:
    """For a request without one."""
    return secrets.randbits(63)


class Intake:
    """Answers every request first with ``Admitted`` or ``Rejected``."""

    def __init__(
        self,
        config: SchedulerConfig,
        limits: ServingLimits,
        live: LiveRequests,
        connection: Connection,
        *,
        ready: SchedulerReady,
        count_free_places: Callable[[], int],
        grammar_manager: GrammarManager[RequestGroup] | None,
        drafter: Drafter | None,
        token_bytes: Sequence[bytes],
        draw_seed: Callable[[], int] = random_seed,
    ) -> None:
        self.is_draining = False
        """Whether new requests are refused because the process is about to leave."""
        self.grammar_queue: set[RequestGroup] = set()
        """Requests that wait for their grammar."""
        self._config = config
        self._limits = limits
        self._live = live
        self._connection = connection
        self._ready = ready
        self._count_free_places = count_free_places
        self._grammar_manager = grammar_manager
        self._drafter = drafter
        self._token_bytes = token_bytes
        self._draw_seed = draw_seed
        self._num_arrived = 0

    def greet(self, client: bytes, hello: Hello) -> None:
        """A client has started or lost its connection: nobody waits any more for what it asked before."""
        self.abort_client(client)
        if hello.protocol_version != PROTOCOL_VERSION:
            logger.error("an HTTP process speaks protocol %d, not %d", hello.protocol_version, PROTOCOL_VERSION)
            return
        self._connection.send(client, self._ready)

    def generate(self, client: bytes, message: GenerateRequest) -> None:
        error = self._refusal(client, message)
        if error is not None:
            self._connection.send(client, Rejected(request_id=message.request_id, error=error))
            return
        seed = message.sampling.seed
        group = make_group(
            client,
            message,
            seed=self._draw_seed() if seed is None else seed,
            eos_token_ids=self._limits.eos_token_ids,
            max_total_tokens=self._limits.max_total_tokens,
        )
        self._live.add(group)
        if message.grammar is None or self._grammar_manager is None:
            self._admit(group)
        elif self._grammar_manager.process_req_with_grammar(group):
            self.grammar_queue.add(group)
        else:
            self._admit_with_grammar(group)

    def admit_ready_grammars(self) -> None:
        if self._grammar_manager is not None:
            for group in self._grammar_manager.get_ready_grammar_requests():
                self.grammar_queue.remove(group)
                self._admit_with_grammar(group)

    def abort(self, client: bytes, request_id: str | None) -> None:
        """The client's own request, or else another client's: who stops a request may reach any HTTP process."""
        group = None if request_id is None else self._live.get(client, request_id)
        for found in self._live.named(request_id) if group is None else [group]:
            self._abort(found)

    def abort_client(self, client: bytes) -> int:
        """Returns how many requests it had."""
        groups = self._live.of_client(client)
        for group in groups:
            self._abort(group)
        return len(groups)

    def _abort(self, group: RequestGroup) -> None:
        if group not in self.grammar_queue or self._grammar_manager is None:
            self._live.abort(group)
            return
        self.grammar_queue.remove(group)
        self._grammar_manager.abort_requests([group.request_id])
        self._live.num_aborted += 1
        self._live.reject(group, ErrorInfo(status=400, message="The request was aborted.", code="aborted"))

    def _bound_thinking(self, group: RequestGroup) -> None:
        reasoning = group.reasoning
        if reasoning is not None and reasoning.budget is not None and self._grammar_manager is not None:
            group.grammar = self._grammar_manager.thinking_budget(reasoning)

    def _refusal(self, client: bytes, message: GenerateRequest) -> ErrorInfo | None:
        if self.is_draining:
            return ErrorInfo(status=503, type="server_error", message="The server is shutting down.")
        if self._live.get(client, message.request_id) is not None:
            return ErrorInfo(status=400, message=f"The request id {message.request_id!r} is in use.")
        error = admission.check_request(message, self._limits, serves_grammars=self._grammar_manager is not None)
        if error is not None:
            return error
        if self._live.num_waiting >= self._config.max_queued_requests + self._count_free_places():
            return admission.queue_is_full(self._config.max_queued_requests)
        return None

    def _admit_with_grammar(self, group: RequestGroup) -> None:
        if group.grammar is not None:
            self._admit(group)
        elif group.grammar_error is not None:
            self._live.reject(group, admission.grammar_failed(group.message, group.grammar_error))
        else:
            # Fail closed: without a grammar there is no answer.
            message = "The grammar could not be compiled."
            self._live.reject(group, ErrorInfo(status=500, type="server_error", message=message))

    def _admit(self, group: RequestGroup) -> None:
        try:
            if group.message.grammar is None:
                self._bound_thinking(group)
            choices = make_choices(group, self._num_arrived, self._token_bytes)
            self._num_arrived += len(choices)
            if self._drafter is not None:
                for request in choices:
                    request.may_draft = self._drafter.may_draft(request)
            self._live.start(choices)
        except BaseException as error:
            reraise_exit(error)
            # One request's trouble, such as a grammar library's, is not the others'.
            logger.exception("request %s could not be started", group.message.request_id)
            message = f"The request could not be started: {error}"
            self._live.reject(group, ErrorInfo(status=500, type="server_error", message=message))
            return
        report = _report(group) if group.message.grammar is not None else None
        self._connection.send(group.client, Admitted(request_id=group.message.request_id, grammar=report))


def _report(group: RequestGroup) -> GrammarReport | None:
    stats = group.grammar.grammar_stats if group.grammar is not None else None
    if stats is None:
        return None
    return GrammarReport(
        backend=stats.backend,
        queue_seconds=stats.queue_seconds,
        compile_seconds=stats.compile_seconds,
        is_cache_hit=stats.is_cache_hit,
        joined_compile=stats.joined_compile,
        size_bytes=stats.size_bytes,
        unenforced=stats.unenforced,
    )

"""Requests between their arrival and their end, and the ways they end."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from scheduler.connection import Connection
from scheduler.interfaces import Drafter, Executor
from scheduler.messages import ErrorInfo, Failed, Finish, GenerateRequest, Rejected
from scheduler.outputs import Outbox
from scheduler.planning.planner import Planner
from scheduler.requests import acceptance
from scheduler.requests.request import Request, RequestGroup, Status

logger = logging.getLogger(__name__)


class LiveRequests:
    """Every request that was neither answered to its end nor refused, by client and id."""

    def __init__(
        self,
        planner: Planner,
        executor: Executor,
        connection: Connection,
        outbox: Outbox,
        drafter: Drafter | None = None,
    ) -> None:
        self.num_aborted = 0
        self._planner = planner
        self._executor = executor
        self._connection = connection
        self._outbox = outbox
        self._drafter = drafter
        self._groups: dict[tuple[bytes, str], RequestGroup] = {}
        self._ended: deque[list[Request]] = deque()
        """For each launched step, the choices that ended since: their sampling state goes when it is collected."""

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def num_waiting(self) -> int:
        """Requests of which no choice ever ran."""
        return sum(not group.is_running for group in self._groups.values())

    def get(self, client: bytes, request_id: str) -> RequestGroup | None:
        return self._groups.get((client, request_id))

    def named(self, name: str | None) -> list[RequestGroup]:
        """Of any client, by the id of one prompt, of the whole answer, or of the client; ``None`` names all."""
        return [group for group in self._groups.values() if name is None or name in _names(group.message)]

    def of_client(self, client: bytes) -> list[RequestGroup]:
        return [group for group in self._groups.values() if group.client == client]

    def add(self, group: RequestGroup) -> None:
        self._groups[group.client, group.message.request_id] = group

    def start(self, choices: Sequence[Request]) -> None:
        """Queue the choices of a request for a place in the batch: all of them, or, where that raises, none."""
        added: list[Request] = []
        try:
            for request in choices:
                self._executor.add(request)
                added.append(request)
        except BaseException:
            for request in added:
                self._executor.remove(request)
            raise
        for request in choices:
            self._planner.add(request)

    def finish(self, request: Request, finish: Finish) -> None:
        request.finish = finish
        self._end(request)
        group = request.group
        group.num_unfinished -= 1
        if not group.num_unfinished:
            self._forget(group)

    def fail(self, group: RequestGroup, message: str) -> None:
        """End an admitted request by an error."""
        logger.error("request %s failed: %s", group.message.request_id, message)
        self._end_all(group)
        error = ErrorInfo(status=500, type="server_error", message=message)
        self._connection.send(group.client, Failed(request_id=group.message.request_id, error=error))

    def abort(self, group: RequestGroup) -> None:
        """End an admitted request whose client no longer wants it."""
        self.num_aborted += 1
        for request in self._end_all(group):
            request.finish = acceptance.end(request, "abort")
            self._outbox.add(request)

    def reject(self, group: RequestGroup, error: ErrorInfo) -> None:
        """End a request before it was admitted."""
        self._forget(group)
        self._connection.send(group.client, Rejected(request_id=group.message.request_id, error=error))

    def step_launched(self) -> None:
        self._ended.append([])

    def step_collected(self) -> None:
        """The oldest launched step is over, and its results are applied."""
        for request in self._ended.popleft():
            self._executor.remove(request)

    def _end_all(self, group: RequestGroup) -> list[Request]:
        unfinished = [request for request in group.choices if request.status is not Status.FINISHED]
        for request in unfinished:
            self._end(request)
        group.num_unfinished = 0
        self._forget(group)
        return unfinished

    def _end(self, request: Request) -> None:
        self._planner.remove(request)
        if request.grammar is not None:
            request.grammar.finished = True
        if self._drafter is not None:
            self._drafter.remove(request)
        if self._ended:
            self._ended[-1].append(request)
        else:
            self._executor.remove(request)

    def _forget(self, group: RequestGroup) -> None:
        del self._groups[group.client, group.message.request_id]
        group.choices = []  # they refer to it, and what they hold would stay until the collector looks


def _names(message: GenerateRequest) -> tuple[str, str, str]:
    return message.request_id, message.request_id.rpartition(":")[0], message.client_request_id

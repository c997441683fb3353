"""A source whose faults end nothing but its own guesses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from constrained.errors import reraise_exit
from model_runner.errors import RankError
from scheduler.drafters.source import DraftSource

if TYPE_CHECKING:
    from scheduler.requests.request import Request

logger = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")


class ContainedSource(DraftSource):
    """Asks ``source``. Whatever that raises, the requests it was asked for go on without its guesses.

    Only :class:`RankError` passes: a group that has lost a rank cannot go on.
    """

    def __init__(self, source: DraftSource) -> None:
        self.name = source.name
        self._source = source
        self._undrafted: set[int] = set()
        """Requests for which the source failed; by key."""

    def wants(self, request: Request) -> bool:
        return self._call([request], lambda: self._source.wants(request), False)

    def prepare(self, requests: Sequence[Request]) -> None:
        drafting = [request for request in requests if request.key not in self._undrafted]
        if drafting:
            self._call(drafting, lambda: self._source.prepare(drafting), None)

    def propose(self, request: Request, behind: tuple[int, ...], max_tokens: int) -> Sequence[int]:
        if request.key in self._undrafted:
            return ()
        return self._call(
            [request], lambda: tuple(map(int, self._source.propose(request, behind, max_tokens)))[:max_tokens], ()
        )

    def verified(self, request: Request, num_proposed: int, num_accepted: int) -> None:
        if request.key not in self._undrafted:
            self._call([request], lambda: self._source.verified(request, num_proposed, num_accepted), None)

    def remove(self, request: Request) -> None:
        if request.key in self._undrafted:
            self._undrafted.remove(request.key)
        else:
            self._forget(request)

    def _call(self, requests: Sequence[Request], operation: Callable[[], ResultT], otherwise: ResultT) -> ResultT:
        try:
            return operation()
        except RankError:
            raise
        except BaseException as error:
            reraise_exit(error)
            ids = ", ".join(request.group.message.request_id for request in requests)
            logger.exception("the %s drafter failed and drafts no more for request %s", self.name, ids)
        for request in requests:
            self._undrafted.add(request.key)
            self._forget(request)
        return otherwise

    def _forget(self, request: Request) -> None:
        try:
            self._source.remove(request)
        except BaseException as error:
            reraise_exit(error)
            ended = request.group.message.request_id
            logger.exception("the %s drafter failed to forget request %s", self.name, ended)

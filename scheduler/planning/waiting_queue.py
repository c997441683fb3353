"""Requests that wait for a place in the batch, and the order in which they get one."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from itertools import groupby, islice

from scheduler.config import SchedulePolicy
from scheduler.requests.request import Request

MATCH_WINDOW = 64
"""Requests whose cached prefix is looked up in one step."""
MAX_PASSED_OVER = 64
"""Later arrivals that may go before a request because their cached prefix is longer: nobody starves."""


def seniority(request: Request) -> tuple[int, int]:
    """Sorts higher priority first, then earlier arrival."""
    return -request.priority, request.arrival


class WaitingQueue:
    """By priority; within one priority by arrival, or by the longest cached prefix."""

    def __init__(self, policy: SchedulePolicy) -> None:
        self._policy = policy
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=seniority)

    def remove(self, request: Request) -> None:
        self._requests.remove(request)

    def admitted(self, request: Request) -> None:
        """Take out a request that got a place, and note whom it passed over."""
        for other in self._requests:
            if seniority(other) >= seniority(request):
                break
            if other.priority == request.priority:
                other.num_passed_over += 1
        self._requests.remove(request)

    def candidates(self, matched_pages: Callable[[Request], int]) -> list[Request]:
        """The order of admission. Requests that ran before, or were passed over long enough, go by arrival."""
        if self._policy == "fcfs":
            return list(self._requests)
        ordered: list[Request] = []
        for _, same_priority in groupby(islice(self._requests, MATCH_WINDOW), key=lambda request: request.priority):
            ordered += sorted(same_priority, key=lambda request: self._rank(request, matched_pages))
        return ordered

    @staticmethod
    def _rank(request: Request, matched_pages: Callable[[Request], int]) -> tuple[bool, int, int]:
        if request.residency or request.num_passed_over >= MAX_PASSED_OVER:
            return False, 0, request.arrival
        return True, -matched_pages(request), request.arrival

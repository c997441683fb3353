"""The interface of one way to guess tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.requests.request import Request


class DraftSource(ABC):
    """Guesses tokens behind what a request knows. Whatever it answers, the output stays what it would have been.

    A source that needs more than token ids of the model (the hidden states that an EAGLE head reads) takes them in
    its own constructor, from the runner it is built with, and works in :meth:`prepare`.
    """

    name: str
    """Label of its metrics."""

    def wants(self, request: Request) -> bool:
        """Whether it may ever guess for a request, asked once at admission.

        A request that nobody wants runs ahead of its results on devices that overlap steps.
        """
        return True

    def prepare(self, requests: Sequence[Request]) -> None:  # noqa: B027
        """The requests that may be asked for in this step: the place for work that is cheaper for all at once."""

    @abstractmethod
    def propose(self, request: Request, behind: tuple[int, ...], max_tokens: int) -> Sequence[int]:
        """Up to ``max_tokens`` guesses for what follows ``request.token_ids`` and ``behind``, or none.

        Parameters
        ----------
        behind
            Guesses of other sources for the same step, right behind ``request.token_ids``.
        max_tokens
            At least 1.
        """

    def verified(self, request: Request, num_proposed: int, num_accepted: int) -> None:  # noqa: B027
        """What became of its last guesses, once their step is over; ``request.token_ids`` holds the accepted ones.

        A guess counts only if everything before it was right: guesses behind another source's wrong one are reported
        as not proposed.
        """

    def remove(self, request: Request) -> None:  # noqa: B027
        """The request is over; silent when it is unknown."""

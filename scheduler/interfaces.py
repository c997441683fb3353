"""What the scheduler needs of an executor, a model and a drafter, as protocols: its tests run on fakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from model_runner.forward_row import ForwardRow
    from scheduler.messages import DrafterStats
    from scheduler.planning.plan import StepPlan, StepResult
    from scheduler.requests.request import Request


class Drafter(Protocol):
    """Guesses what a request's next tokens are. Any guess is safe: the sampler verifies it."""

    def may_draft(self, request: Request) -> bool:
        """Whether it may ever guess for a request, asked once at admission; only then is it asked for guesses."""

    def prepare(self, requests: Sequence[Request]) -> None:
        """Told before each step which requests may be asked for."""

    def propose(self, request: Request, max_tokens: int) -> Sequence[int]:
        """Up to ``max_tokens`` ids behind ``request.token_ids``; more are cut off, none is always right."""

    def verified(self, request: Request, num_proposed: int, num_accepted: int) -> None:
        """How many guesses of a draft were verified and how many of them, from the first on, are output now."""

    def remove(self, request: Request) -> None:
        """The request is over; silent when it is unknown."""

    def stats(self) -> dict[str, DrafterStats]:
        """Counters by kind of draft."""


class Executor(Protocol):
    """Runs planned steps, in order."""

    max_in_flight: int
    """Steps that may be launched beyond the one whose result is collected next: 0, or 1 for overlapped ones."""

    def add(self, request: Request) -> None:
        """A choice will appear in plans from now on."""

    def remove(self, request: Request) -> None:
        """A choice is over and is in no launched step."""

    def launch(self, plan: StepPlan) -> None: ...

    def collect(self) -> StepResult:
        """Results of the oldest step launched and not collected; waits for the device."""


class Runner(Protocol):
    """``model_runner.runner.ModelRunner``."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def forward(
        self, rows: Sequence[ForwardRow], previous_token_ids: torch.Tensor | None = None
    ) -> torch.Tensor: ...  # [S, V] float32

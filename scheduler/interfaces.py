"""What the scheduler needs of the packages below it, and of a drafter, as protocols: its tests run on fakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from model_runner.forward_row import ForwardRow
    from scheduler.plan import StepPlan, StepResult
    from scheduler.request import Request, RequestGroup


class GrammarObject(Protocol):
    """One choice's live grammar state (``constrained.base.BaseGrammarObject``)."""

    def accept_token(self, token_id: int) -> None:
        """Advance; raises ``ValueError`` for a token the grammar refuses."""

    def rollback(self, k: int) -> None: ...

    def is_terminated(self) -> bool:
        """Whether nothing may follow."""

    def copy(self) -> GrammarObject:
        """The same grammar in its start state."""

    def maybe_init_reasoning(self, reasoning: bool) -> None:
        """Tell a state in its start whether the prompt leaves a thinking part open."""

    def fill_vocab_mask(self, vocab_mask: torch.Tensor, idx: int) -> None:
        """Write one row of a host mask. [.., ceil(V / 32)] int32"""


class GrammarManager(Protocol):
    """Compiles the grammars of request groups off the loop (``constrained.manager.GrammarManager``)."""

    def process_req_with_grammar(self, req: RequestGroup) -> bool:
        """True: the request waits for its grammar. False: its grammar, or its error, is set already."""

    def get_ready_grammar_requests(self) -> list[RequestGroup]:
        """Those that have waited and now have a grammar or an error."""

    def abort_requests(self, request_ids: Sequence[str]) -> None: ...

    def clear(self) -> None: ...

    def fileno(self) -> int:
        """Readable when :meth:`get_ready_grammar_requests` has something to return."""


class Drafter(Protocol):
    """Guesses what a request's next tokens are. Any guess is safe: the sampler verifies it."""

    def propose(self, request: Request, max_tokens: int) -> Sequence[int]:
        """Up to ``max_tokens`` ids behind ``request.token_ids``; more are cut off, none is always right."""


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

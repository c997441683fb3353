"""The interface of a penalty: it reads the counted tokens of each row and changes the logits of those tokens.

A new penalty is one subclass of :class:`BatchedPenalizer` and a line in :data:`sampling.penalizers.PENALIZERS`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from sampling.params import SamplingParams


class PenalizedRequest(Protocol):
    """One row of a batch, as penalizers see it."""

    @property
    def sampling_params(self) -> SamplingParams: ...
    @property
    def prompt_token_ids(self) -> Sequence[int]: ...
    @property
    def eos_token_ids(self) -> Sequence[int]: ...


class PenalizedBatch(Protocol):
    """The batch of an orchestrator, which holds it by a weak reference."""

    @property
    def reqs(self) -> Sequence[PenalizedRequest]: ...
    @property
    def device(self) -> torch.device: ...


@dataclass(frozen=True)
class Suppressions:
    """Tokens that must not be drawn: P pairs of a position and a token, each active or not.

    ``positions`` ``[P]`` int64 indexes S positions; ``token_ids`` ``[P]`` int64; ``active`` ``[P]`` bool.
    """

    positions: torch.Tensor
    token_ids: torch.Tensor
    active: torch.Tensor

    def at(self, positions: torch.Tensor) -> Suppressions:
        """The same pairs after renumbering: ``positions[i]`` is the new number of position i."""
        return Suppressions(positions[self.positions], self.token_ids, self.active)

    def apply(self, logits: torch.Tensor) -> None:
        """Set active pairs of ``logits`` ``[S, V]`` to -inf, in place."""
        # A pair may occur twice, active and inactive. The minimum is right in any order of writing.
        bound = torch.where(self.active, float("-inf"), float("inf")).to(logits.dtype)
        index = self.positions * logits.shape[1] + self.token_ids
        logits.view(-1).scatter_reduce_(0, index, bound, "amin")

    def relaxed(self, vocab_mask: torch.Tensor | None, num_positions: int, vocab_size: int) -> Suppressions:
        """Deactivate the pairs of every position where they would leave no allowed token.

        ``vocab_mask`` ``[S, W]`` int32, bit 1 = allowed.
        """
        pair = self.positions * vocab_size + self.token_ids
        order = torch.argsort(torch.where(self.active, pair, -1))
        pair, active = pair[order], self.active[order]
        counts_once = active.clone()
        counts_once[1:] &= (pair[1:] != pair[:-1]) | ~active[:-1]
        positions, token_ids = self.positions[order], self.token_ids[order]
        if vocab_mask is not None:
            words = vocab_mask[positions, token_ids >> 5]
            counts_once &= (words >> (token_ids & 31)) & 1 == 1
            num_allowed = _num_bits(vocab_mask)
        else:
            num_allowed = torch.full((num_positions,), vocab_size, dtype=torch.int64, device=pair.device)
        num_suppressed = torch.zeros_like(num_allowed).scatter_add_(0, positions, counts_once.to(torch.int64))
        has_no_token = num_suppressed == num_allowed
        return Suppressions(self.positions, self.token_ids, self.active & ~has_no_token[self.positions])

    @staticmethod
    def joined(parts: Sequence[Suppressions]) -> Suppressions | None:
        """All parts as one, or ``None`` if there are none."""
        if not parts:
            return None
        return Suppressions(
            torch.cat([part.positions for part in parts]),
            torch.cat([part.token_ids for part in parts]),
            torch.cat([part.active for part in parts]),
        )


RecentTokens = Callable[[int], torch.Tensor]
"""``recent(n)``: ``[S, n]`` int32, the n tokens before each of S positions, drafts included, -1 before the start."""


class BatchedPenalizer(abc.ABC):
    """One penalty for every row of a batch; holds nothing until some row needs it.

    A row's *entries* are its distinct counted tokens. ``rows`` ``[S]`` int64 gives the batch row of each of
    the S logits rows. ``counts`` ``[S, C]`` int32 is how often each entry occurs before that position.
    """

    is_multiplicative: ClassVar[bool] = False
    """Whether it scales logits, in :meth:`accumulate_scaling_penalties`."""

    is_additive: ClassVar[bool] = False
    """Whether it adds to logits, in :meth:`accumulate_additive_penalties`."""

    counts_tokens: ClassVar[bool] = True
    """Whether it looks at counts at all; the lists are kept only when some prepared penalizer does."""

    def __init__(self) -> None:
        self._is_prepared = False

    @classmethod
    @abc.abstractmethod
    def is_required_by(cls, request: PenalizedRequest) -> bool:
        """Whether this request asks for the penalty at all."""

    @abc.abstractmethod
    def _prepare(self, reqs: Sequence[PenalizedRequest], device: torch.device) -> None:
        """Allocate the parameters of all rows, neutral for rows that do not ask."""

    @abc.abstractmethod
    def _filter(self, keep_indices: torch.Tensor) -> None: ...

    @abc.abstractmethod
    def _merge(self, their: BatchedPenalizer) -> None: ...

    @abc.abstractmethod
    def _teardown(self) -> None: ...

    @property
    def is_prepared(self) -> bool:
        return self._is_prepared

    @classmethod
    def is_required(cls, reqs: Sequence[PenalizedRequest]) -> bool:
        return any(cls.is_required_by(request) for request in reqs)

    def prepare_if_required(self, reqs: Sequence[PenalizedRequest], device: torch.device) -> bool:
        """Allocate if some request needs it; says whether one does."""
        required = self.is_required(reqs)
        if required:
            self.ensure_prepared(reqs, device)
        return required

    def ensure_prepared(self, reqs: Sequence[PenalizedRequest], device: torch.device) -> None:
        """Allocate even if no request needs it: a batch that needs the penalty is about to be merged."""
        if not self._is_prepared:
            self._prepare(reqs, device)
            self._is_prepared = True

    def teardown(self) -> None:
        if self._is_prepared:
            self._teardown()
            self._is_prepared = False

    def filter(self, keep_indices: torch.Tensor) -> None:
        if self._is_prepared:
            self._filter(keep_indices)

    def merge(self, their: BatchedPenalizer) -> None:
        """Append the rows of a prepared penalizer to this prepared one."""
        self._merge(their)

    def accumulate_additive_penalties(  # noqa: B027 - an additive penalizer overrides it, a scaling one does not
        self, additive: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor
    ) -> None:
        """Add this penalty of each entry to ``additive`` ``[S, C]`` float32, in place."""

    def accumulate_scaling_penalties(  # noqa: B027 - the other way round
        self, scaling: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor, in_prompt: torch.Tensor
    ) -> None:
        """Multiply into ``scaling`` ``[S, C]`` float32, in place, the factor of each entry."""

    def suppressions(self, rows: torch.Tensor, num_ahead: torch.Tensor, recent: RecentTokens) -> Suppressions | None:
        """Tokens that this penalizer forbids; ``num_ahead`` ``[S]`` is the number of drafts before each position."""
        return None

    def advance(self, rows: torch.Tensor, num_tokens: torch.Tensor) -> None:  # noqa: B027 - most count nothing
        """Record that ``num_tokens`` ``[N]`` more tokens were counted in the given distinct rows."""


def _num_bits(words: torch.Tensor) -> torch.Tensor:
    """One bits in each row: ``[S, W]`` int32 to ``[S]`` int64."""
    table = torch.tensor([value.bit_count() for value in range(256)], dtype=torch.uint8, device=words.device)
    octets = words.contiguous().view(torch.uint8).to(torch.int32)
    return table[octets].sum(dim=1, dtype=torch.int64)

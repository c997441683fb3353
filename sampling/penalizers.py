"""Penalties as small classes: each looks at a row's counted tokens and says what they do to those tokens' logits.

A new penalty is one subclass of :class:`_BatchedPenalizer` and a line in :data:`PENALIZERS`.
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
    """What the orchestrator holds by weak reference."""

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
        """The same for positions renumbered: ``positions[i]`` is the new number of position i."""
        return Suppressions(positions[self.positions], self.token_ids, self.active)

    @staticmethod
    def joined(parts: Sequence[Suppressions]) -> Suppressions | None:
        """All parts as one; ``None`` for none."""
        if not parts:
            return None
        return Suppressions(
            torch.cat([part.positions for part in parts]),
            torch.cat([part.token_ids for part in parts]),
            torch.cat([part.active for part in parts]),
        )


RecentTokens = Callable[[int], torch.Tensor]
"""``recent(n)``: ``[S, n]`` int32, the n tokens before each of S positions, drafts included, -1 before the start."""


class _BatchedPenalizer(abc.ABC):
    """One penalty for every row of a batch; holds nothing until some row needs it.

    A row's *entries* are its distinct counted tokens. ``rows`` ``[S]`` int64 names the row behind each of S logits
    rows, ``counts`` ``[S, C]`` int32 is how often each entry stands before that position.
    """

    is_multiplicative: ClassVar[bool] = False
    """True: scales logits (:meth:`accumulate_scaling_penalties`). False: adds to them."""

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
    def _merge(self, their: _BatchedPenalizer) -> None: ...

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
        """Allocate, needed or not: a batch that needs the penalty is about to join."""
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

    def merge(self, their: _BatchedPenalizer) -> None:
        """Append the rows of a prepared penalizer to this prepared one."""
        self._merge(their)

    def accumulate_additive_penalties(  # noqa: B027 - an additive penalizer overrides it, a scaling one does not
        self, additive: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor
    ) -> None:
        """Add to ``additive`` ``[S, C]`` float32, in place, what is to be added to each entry's logit."""

    def accumulate_scaling_penalties(  # noqa: B027 - the other way round
        self, scaling: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor, in_prompt: torch.Tensor
    ) -> None:
        """Multiply into ``scaling`` ``[S, C]`` float32, in place, the factor of each entry."""

    def suppressions(self, rows: torch.Tensor, num_ahead: torch.Tensor, recent: RecentTokens) -> Suppressions | None:
        """Tokens that this penalizer forbids; ``num_ahead`` ``[S]`` drafts stand before each position."""
        return None

    def advance(self, rows: torch.Tensor, num_tokens: torch.Tensor) -> None:  # noqa: B027 - most count nothing
        """``num_tokens`` ``[N]`` more tokens (negative: fewer) were counted in the given distinct rows."""


class _CoefficientPenalizer(_BatchedPenalizer):
    """A penalty with one number for each row."""

    _neutral: ClassVar[float]

    def __init__(self) -> None:
        super().__init__()
        self.coefficients: torch.Tensor = torch.empty(0)  # [B] float32

    @classmethod
    @abc.abstractmethod
    def _coefficient(cls, params: SamplingParams) -> float: ...

    @classmethod
    def is_required_by(cls, request: PenalizedRequest) -> bool:
        return cls._coefficient(request.sampling_params) != cls._neutral

    def _prepare(self, reqs: Sequence[PenalizedRequest], device: torch.device) -> None:
        values = [self._coefficient(request.sampling_params) for request in reqs]
        self.coefficients = torch.tensor(values, dtype=torch.float32, device=device)

    def _filter(self, keep_indices: torch.Tensor) -> None:
        self.coefficients = self.coefficients[keep_indices]

    def _merge(self, their: _BatchedPenalizer) -> None:
        if not isinstance(their, _CoefficientPenalizer):
            raise TypeError(f"cannot merge {type(their).__name__} into {type(self).__name__}")
        self.coefficients = torch.cat([self.coefficients, their.coefficients])

    def _teardown(self) -> None:
        self.coefficients = torch.empty(0)


class BatchedRepetitionPenalizer(_CoefficientPenalizer):
    """Positive logits of tokens that appeared are divided by the penalty, negative ones multiplied by it.

    The same however often a token appeared (Keskar et al., "CTRL", 2019, section 4.1). With ``penalize_prompt``
    tokens of the prompt count as having appeared.
    """

    is_multiplicative = True
    _neutral = 1.0

    @classmethod
    def _coefficient(cls, params: SamplingParams) -> float:
        return params.repetition_penalty

    def accumulate_scaling_penalties(
        self, scaling: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor, in_prompt: torch.Tensor
    ) -> None:
        factor = self.coefficients[rows][:, None]
        scaling.mul_(torch.where((counts > 0) | in_prompt, factor, 1.0))


class BatchedFrequencyPenalizer(_CoefficientPenalizer):
    """Subtracts the penalty once for every time a token was generated."""

    _neutral = 0.0

    @classmethod
    def _coefficient(cls, params: SamplingParams) -> float:
        return params.frequency_penalty

    def accumulate_additive_penalties(self, additive: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor) -> None:
        additive.sub_(counts * self.coefficients[rows][:, None])


class BatchedPresencePenalizer(_CoefficientPenalizer):
    """Subtracts the penalty once from every token that was generated at all."""

    _neutral = 0.0

    @classmethod
    def _coefficient(cls, params: SamplingParams) -> float:
        return params.presence_penalty

    def accumulate_additive_penalties(self, additive: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor) -> None:
        additive.sub_((counts > 0) * self.coefficients[rows][:, None])


class BatchedMinNewTokensPenalizer(_BatchedPenalizer):
    """End-of-text and stop ids are impossible until the minimum number of tokens was generated."""

    counts_tokens = False

    def __init__(self) -> None:
        super().__init__()
        self.min_new_tokens = torch.empty(0)  # [B] int64
        self.stop_token_ids = torch.empty(0)  # [B, K] int64, -1 behind a row's ids
        self.len_output_tokens = torch.empty(0)  # [B] int64

    @classmethod
    def is_required_by(cls, request: PenalizedRequest) -> bool:
        return request.sampling_params.min_tokens > 0

    def suppressions(self, rows: torch.Tensor, num_ahead: torch.Tensor, recent: RecentTokens) -> Suppressions | None:
        token_ids = self.stop_token_ids[rows]
        active = torch.isneginf(self.stop_token_penalties(rows, num_ahead))
        positions = torch.arange(len(rows), device=rows.device)[:, None].expand_as(token_ids)
        return Suppressions(positions.reshape(-1), token_ids.clamp(min=0).reshape(-1), active.reshape(-1))

    def stop_token_penalties(self, rows: torch.Tensor, num_ahead: torch.Tensor) -> torch.Tensor:
        """``[S, K]`` float32 for :attr:`stop_token_ids` of the rows: -inf where the minimum is not reached, else 0.

        ``num_ahead`` ``[S]``: draft tokens that stand between the counted ones and the position.
        """
        below = self.len_output_tokens[rows] + num_ahead < self.min_new_tokens[rows]
        active = below[:, None] & (self.stop_token_ids[rows] >= 0)
        return torch.where(active, float("-inf"), 0.0)

    def advance(self, rows: torch.Tensor, num_tokens: torch.Tensor) -> None:
        self.len_output_tokens[rows] += num_tokens

    def _prepare(self, reqs: Sequence[PenalizedRequest], device: torch.device) -> None:
        stops = [_suppressed_ids(request) for request in reqs]
        width = max(1, *(len(ids) for ids in stops)) if stops else 1
        padded = [ids + [-1] * (width - len(ids)) for ids in stops]
        minimums = [request.sampling_params.min_tokens for request in reqs]
        self.min_new_tokens = torch.tensor(minimums, dtype=torch.int64, device=device)
        self.stop_token_ids = torch.tensor(padded, dtype=torch.int64, device=device).view(len(reqs), width)
        self.len_output_tokens = torch.zeros(len(reqs), dtype=torch.int64, device=device)

    def _filter(self, keep_indices: torch.Tensor) -> None:
        self.min_new_tokens = self.min_new_tokens[keep_indices]
        self.stop_token_ids = self.stop_token_ids[keep_indices]
        self.len_output_tokens = self.len_output_tokens[keep_indices]

    def _merge(self, their: _BatchedPenalizer) -> None:
        if not isinstance(their, BatchedMinNewTokensPenalizer):
            raise TypeError(f"cannot merge {type(their).__name__} into {type(self).__name__}")
        width = max(self.stop_token_ids.shape[1], their.stop_token_ids.shape[1])
        stops = [
            torch.nn.functional.pad(ids, (0, width - ids.shape[1]), value=-1)
            for ids in (self.stop_token_ids, their.stop_token_ids)
        ]
        self.min_new_tokens = torch.cat([self.min_new_tokens, their.min_new_tokens])
        self.stop_token_ids = torch.cat(stops)
        self.len_output_tokens = torch.cat([self.len_output_tokens, their.len_output_tokens])

    def _teardown(self) -> None:
        self.min_new_tokens = self.stop_token_ids = self.len_output_tokens = torch.empty(0)


def _suppressed_ids(request: PenalizedRequest) -> list[int]:
    params = request.sampling_params
    if params.min_tokens == 0:
        return []
    # An end-of-text token that is ignored ends nothing, so it needs no suppression.
    eos = () if params.ignore_eos else request.eos_token_ids
    return sorted({*eos, *params.stop_token_ids})


PENALIZERS: tuple[type[_BatchedPenalizer], ...] = (
    BatchedRepetitionPenalizer,
    BatchedFrequencyPenalizer,
    BatchedPresencePenalizer,
    BatchedMinNewTokensPenalizer,
)
"""Every penalty, in the order of application within its kind: all scaling first, then all additive ones."""

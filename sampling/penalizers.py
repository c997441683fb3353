"""The penalties there are."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import ClassVar

import torch

from sampling.params import SamplingParams
from sampling.penalizer import BatchedPenalizer, PenalizedRequest, RecentTokens, Suppressions

__all__ = [
    "PENALIZERS",
    "BatchedBadWordsPenalizer",
    "BatchedFrequencyPenalizer",
    "BatchedMinNewTokensPenalizer",
    "BatchedPenalizer",
    "BatchedPresencePenalizer",
    "BatchedRepetitionPenalizer",
]

_ANY = -2  # matches whatever stands there
_SMALLEST, _LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max


class _CoefficientPenalizer(BatchedPenalizer):
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

    def _merge(self, their: BatchedPenalizer) -> None:
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
        # A factor that rounds to zero or to infinity in float32 would turn logits of -inf or zero into NaN.
        return min(max(params.repetition_penalty, _SMALLEST), _LARGEST)

    def accumulate_scaling_penalties(
        self, scaling: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor, in_prompt: torch.Tensor
    ) -> None:
        factor = self.coefficients[rows][:, None]
        scaling.mul_(torch.where((counts > 0) | in_prompt, factor, 1.0))


class BatchedFrequencyPenalizer(_CoefficientPenalizer):
    """Subtracts the penalty once for every time a token was generated."""

    is_additive = True
    _neutral = 0.0

    @classmethod
    def _coefficient(cls, params: SamplingParams) -> float:
        return params.frequency_penalty

    def accumulate_additive_penalties(self, additive: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor) -> None:
        additive.sub_(counts * self.coefficients[rows][:, None])


class BatchedPresencePenalizer(_CoefficientPenalizer):
    """Subtracts the penalty once from every token that was generated at all."""

    is_additive = True
    _neutral = 0.0

    @classmethod
    def _coefficient(cls, params: SamplingParams) -> float:
        return params.presence_penalty

    def accumulate_additive_penalties(self, additive: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor) -> None:
        additive.sub_((counts > 0) * self.coefficients[rows][:, None])


class BatchedMinNewTokensPenalizer(BatchedPenalizer):
    """End-of-text and stop ids are impossible until the minimum number of tokens was generated."""

    counts_tokens = False

    def __init__(self) -> None:
        super().__init__()
        self.min_new_tokens = torch.empty(0)  # [B] int64
        self.stop_token_ids = torch.empty(0)  # [B, K] int64, padded with -1
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

    def _merge(self, their: BatchedPenalizer) -> None:
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


class BatchedBadWordsPenalizer(BatchedPenalizer):
    """The last token of a bad word is impossible where the tokens before it were just generated."""

    def __init__(self) -> None:
        super().__init__()
        self.prefixes = torch.empty(0)  # [B, W, M] int32: all but the last token, _ANY in front
        self.last_token_ids = torch.empty(0)  # [B, W] int64, padded with -1

    @classmethod
    def is_required_by(cls, request: PenalizedRequest) -> bool:
        return bool(request.sampling_params.bad_words_token_ids)

    def suppressions(self, rows: torch.Tensor, num_ahead: torch.Tensor, recent: RecentTokens) -> Suppressions | None:
        prefixes = self.prefixes[rows]
        last = self.last_token_ids[rows]
        before = recent(prefixes.shape[2])[:, None, :]
        active = ((prefixes == before) | (prefixes == _ANY)).all(dim=2) & (last >= 0)
        positions = torch.arange(len(rows), device=rows.device)[:, None].expand_as(last)
        return Suppressions(positions.reshape(-1), last.clamp(min=0).reshape(-1), active.reshape(-1))

    def _prepare(self, reqs: Sequence[PenalizedRequest], device: torch.device) -> None:
        words = [request.sampling_params.bad_words_token_ids for request in reqs]
        most = max((len(of_row) for of_row in words), default=0)
        longest = max((len(word) - 1 for of_row in words for word in of_row), default=0)
        prefixes = torch.full((len(reqs), most, longest), _ANY, dtype=torch.int32)
        last = torch.full((len(reqs), most), -1, dtype=torch.int64)
        for row, of_row in enumerate(words):
            for index, word in enumerate(of_row):
                last[row, index] = word[-1]
                prefixes[row, index, longest - len(word) + 1 :] = torch.tensor(word[:-1], dtype=torch.int32)
        self.prefixes, self.last_token_ids = prefixes.to(device), last.to(device)

    def _filter(self, keep_indices: torch.Tensor) -> None:
        self.prefixes = self.prefixes[keep_indices]
        self.last_token_ids = self.last_token_ids[keep_indices]

    def _merge(self, their: BatchedPenalizer) -> None:
        if not isinstance(their, BatchedBadWordsPenalizer):
            raise TypeError(f"cannot merge {type(their).__name__} into {type(self).__name__}")
        most = max(self.prefixes.shape[1], their.prefixes.shape[1])
        longest = max(self.prefixes.shape[2], their.prefixes.shape[2])
        pad = torch.nn.functional.pad
        self.prefixes = torch.cat(
            [
                pad(of_side, (longest - of_side.shape[2], 0, 0, most - of_side.shape[1]), value=_ANY)
                for of_side in (self.prefixes, their.prefixes)
            ]
        )
        self.last_token_ids = torch.cat(
            [
                pad(of_side, (0, most - of_side.shape[1]), value=-1)
                for of_side in (self.last_token_ids, their.last_token_ids)
            ]
        )

    def _teardown(self) -> None:
        self.prefixes = self.last_token_ids = torch.empty(0)


PENALIZERS: tuple[type[BatchedPenalizer], ...] = (
    BatchedRepetitionPenalizer,
    BatchedFrequencyPenalizer,
    BatchedPresencePenalizer,
    BatchedMinNewTokensPenalizer,
    BatchedBadWordsPenalizer,
)
"""Every penalty, in the order of application within its kind: all scaling first, then all additive ones."""


def _suppressed_ids(request: PenalizedRequest) -> list[int]:
    params = request.sampling_params
    if params.min_tokens == 0:
        return []
    # An end-of-text token that is ignored ends nothing, so it needs no suppression.
    eos = () if params.ignore_eos else request.eos_token_ids
    return sorted({*eos, *params.stop_token_ids})

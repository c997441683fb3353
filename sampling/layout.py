"""One step's layout: which logits row belongs to which choice, and what each needs, as arrays.

A layout is built when the rows of a step change (a choice joins or ends, a number of drafts differs) and reused while
they stay, so that a plain decode step assembles nothing but its positions.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from sampling.draw_parameters import EVERY_TOKEN, DrawParameters
from sampling.noise import position_keys
from sampling.orchestrator import DraftedPositions
from sampling.params import SamplingParams

Int64Array = npt.NDArray[np.int64]

_NO_TOKEN = -1


@dataclass(frozen=True)
class SampleRow:
    """One choice in a step: it has ``1 + len(draft_token_ids)`` consecutive logits rows.

    Logits row j follows the first j drafts; ``position`` is the output position (from 0) of the first
    token to be drawn.
    """

    key: Hashable
    position: int
    draft_token_ids: tuple[int, ...] = ()


class _Choice(Protocol):
    @property
    def sampling_params(self) -> SamplingParams: ...
    @property
    def seed(self) -> int: ...
    @property
    def choice_index(self) -> int: ...


@dataclass(frozen=True)
class LogitBias:
    """P additions: ``values`` ``[P]`` float32 to ``token_ids`` ``[P]`` of the logits rows ``positions`` ``[P]``."""

    positions: torch.Tensor
    token_ids: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True)
class AllowedTokens:
    """Allow-lists as mask words: ``words`` ``[N, ceil(V / 32)]`` int32 for the logits rows ``positions`` ``[N]``."""

    positions: torch.Tensor
    words: torch.Tensor


@dataclass(frozen=True)
class SamplingLayout:
    """R rows of a step and their S positions; S is the number of logits rows."""

    signature: tuple[tuple[Hashable, int], ...]
    starts: torch.Tensor
    """``[R]`` int64: first position of each row."""
    row_of_position: Int64Array
    num_ahead: Int64Array
    """``[S]``: drafts before each position."""
    padded_index: torch.Tensor
    """``[R, 1 + K]`` int64: positions of each row, its last one repeated where it has fewer."""
    temperature: npt.NDArray[np.float64]
    top_k: Int64Array
    top_p: npt.NDArray[np.float64]
    min_p: npt.NDArray[np.float64]
    seeds: Int64Array
    choice_indices: Int64Array
    logit_bias: LogitBias | None
    allowed_tokens: AllowedTokens | None
    penalized_rows: torch.Tensor | None
    """``[N]`` int64: rows of the penalised batch that are in this step."""
    penalized_index: torch.Tensor
    """``[N]`` int64: which of the R rows they are."""
    penalized_positions: torch.Tensor
    """``[T]`` int64: all their positions."""
    penalized_row_index: torch.Tensor
    """``[T]`` int64: which of the N rows each belongs to."""
    penalized_num_ahead: torch.Tensor
    logprob_positions: torch.Tensor | None
    """Positions whose rows asked for log-probabilities."""
    logprob_spans: tuple[tuple[int, int] | None, ...] = field(default=())
    """For each row: where its positions begin among those, and how many top tokens it asked for."""

    @property
    def num_positions(self) -> int:
        return len(self.row_of_position)

    @property
    def most_top_logprobs(self) -> int:
        return max((span[1] for span in self.logprob_spans if span is not None), default=0)

    @property
    def most_drafts(self) -> int:
        return self.padded_index.shape[1] - 1

    def draw_parameters(self, rows: Sequence[SampleRow]) -> DrawParameters:
        """Parameters of the step's draws; the noise key of greedy positions is computed and not used."""
        first = np.array([row.position for row in rows], np.int64)
        keys = position_keys(self.seeds, self.choice_indices, first[self.row_of_position] + self.num_ahead)
        return DrawParameters(self.temperature, self.top_k, self.top_p, self.min_p, keys)

    def drafts(self, rows: Sequence[SampleRow], device: torch.device) -> torch.Tensor:
        """``[R, K]`` int64, :data:`_NO_TOKEN` after each row's drafts."""
        padded = np.full((len(rows), self.most_drafts), _NO_TOKEN, np.int64)
        if self.most_drafts:
            for index, row in enumerate(rows):
                padded[index, : len(row.draft_token_ids)] = row.draft_token_ids
        return torch.from_numpy(padded).to(device, non_blocking=True)

    def penalized(self, drafts: torch.Tensor, vocab_size: int) -> DraftedPositions | None:
        """The positions of penalised rows; a draft outside the vocabulary ends the row's drafts."""
        if self.penalized_rows is None:
            return None
        own = drafts[self.penalized_index]
        valid = ((own >= 0) & (own < vocab_size)).to(torch.int32).cumprod(dim=1).bool()
        return DraftedPositions(self.penalized_rows, own, valid, self.penalized_row_index, self.penalized_num_ahead)

    def num_agreeing(self, drafts: torch.Tensor, token_ids: torch.Tensor, failed: torch.Tensor) -> torch.Tensor:
        """``[R]`` int64: how many drafts of each row equal what was drawn, from the first on."""
        if not self.most_drafts:
            return torch.zeros(len(self.starts), dtype=torch.int64, device=token_ids.device)
        before = self.padded_index[:, :-1]
        agrees = (token_ids[before] == drafts) & ~failed[before]
        return agrees.to(torch.int64).cumprod(dim=1).sum(dim=1)


def signature_of(rows: Sequence[SampleRow]) -> tuple[tuple[Hashable, int], ...]:
    """What a layout depends on, given the choices."""
    return tuple((row.key, len(row.draft_token_ids)) for row in rows)


def build_layout(
    rows: Sequence[SampleRow],
    choices: Mapping[Hashable, _Choice],
    penalized_row_of: Mapping[Hashable, int],
    vocab_size: int,
    device: torch.device,
) -> SamplingLayout:
    """Build a layout.

    Raises
    ------
    KeyError
        A row names no choice.
    ValueError
        A choice has two rows.
    """
    signature = signature_of(rows)
    if len({row.key for row in rows}) != len(rows):
        raise ValueError("a choice has two rows in one step")
    of_rows = [choices[row.key] for row in rows]
    params = [choice.sampling_params for choice in of_rows]
    lengths = np.array([1 + len(row.draft_token_ids) for row in rows], np.int64)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    row_of_position = np.repeat(np.arange(len(rows)), lengths)
    num_ahead = np.arange(len(row_of_position)) - starts[row_of_position]
    widest = int(lengths.max(initial=1))
    padded_index = np.minimum(starts[:, None] + np.arange(widest)[None, :], ends[:, None] - 1)

    def to_device(values: npt.ArrayLike, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), dtype=dtype).to(device)

    penalized = [index for index, row in enumerate(rows) if row.key in penalized_row_of]
    penalized_positions = np.flatnonzero(np.isin(row_of_position, penalized))
    spans: list[tuple[int, int] | None] = []
    asked: list[int] = []
    for index, of_row in enumerate(params):
        if of_row.logprobs is None:
            spans.append(None)
        else:
            spans.append((len(asked), of_row.logprobs))
            asked.extend(range(starts[index], ends[index]))
    positions_of = [range(start, end) for start, end in zip(starts, ends, strict=True)]
    return SamplingLayout(
        signature=signature,
        starts=to_device(starts),
        row_of_position=row_of_position,
        num_ahead=num_ahead,
        padded_index=to_device(padded_index),
        temperature=_temperature(params)[row_of_position],
        top_k=np.array([of_row.top_k if of_row.top_k > 0 else EVERY_TOKEN for of_row in params])[row_of_position],
        top_p=np.array([of_row.top_p for of_row in params], np.float64)[row_of_position],
        min_p=np.array([of_row.min_p for of_row in params], np.float64)[row_of_position],
        seeds=np.array([choice.seed for choice in of_rows], np.int64)[row_of_position],
        choice_indices=np.array([choice.choice_index for choice in of_rows], np.int64)[row_of_position],
        logit_bias=_logit_bias(params, positions_of, device),
        allowed_tokens=_allowed_tokens(params, positions_of, vocab_size, device),
        penalized_rows=to_device([penalized_row_of[rows[index].key] for index in penalized]) if penalized else None,
        penalized_index=to_device(penalized),
        penalized_positions=to_device(penalized_positions),
        penalized_row_index=to_device(np.searchsorted(penalized, row_of_position[penalized_positions])),
        penalized_num_ahead=to_device(num_ahead[penalized_positions]),
        logprob_positions=to_device(asked) if asked else None,
        logprob_spans=tuple(spans),
    )


def _temperature(params: Sequence[SamplingParams]) -> npt.NDArray[np.float64]:
    temperature = np.array([of_row.temperature for of_row in params], np.float64)
    # Below this a quotient could overflow, while any two float32 logits are already infinitely far apart.
    return np.where(temperature > 0.0, np.maximum(temperature, 1e-200), 0.0)


def _logit_bias(
    params: Sequence[SamplingParams], positions_of: Sequence[range], device: torch.device
) -> LogitBias | None:
    positions: list[Int64Array] = []
    token_ids: list[Int64Array] = []
    values: list[npt.NDArray[np.float32]] = []
    for of_row, own in zip(params, positions_of, strict=True):
        if of_row.logit_bias:
            size = len(of_row.logit_bias)
            positions.append(np.repeat(np.arange(own.start, own.stop), size))
            token_ids.append(np.tile(np.fromiter(of_row.logit_bias.keys(), np.int64, size), len(own)))
            values.append(np.tile(np.fromiter(of_row.logit_bias.values(), np.float32, size), len(own)))
    if not positions:
        return None
    arrays = (np.concatenate(positions), np.concatenate(token_ids), np.concatenate(values))
    return LogitBias(*(torch.from_numpy(array).to(device) for array in arrays))


def _allowed_tokens(
    params: Sequence[SamplingParams], positions_of: Sequence[range], vocab_size: int, device: torch.device
) -> AllowedTokens | None:
    positions: list[int] = []
    words = []
    for of_row, own in zip(params, positions_of, strict=True):
        if of_row.allowed_token_ids is not None:
            allowed = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
            allowed[list(of_row.allowed_token_ids)] = 1
            packed = np.packbits(allowed, bitorder="little").view(np.int32)
            positions.extend(own)
            words.extend([packed] * len(own))
    if not positions:
        return None
    stacked = torch.from_numpy(np.stack(words))
    return AllowedTokens(torch.tensor(positions, dtype=torch.int64, device=device), stacked.to(device))

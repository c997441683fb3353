"""One object that keeps every penalty of a batch exact while requests come, go and draft."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from sampling.penalizer import BatchedPenalizer, PenalizedBatch, RecentTokens, Suppressions
from sampling.penalizers import PENALIZERS
from sampling.token_counts import TokenCounts

_CHUNK_ELEMENTS = 1 << 18  # bounds the temporaries of one pass, and keeps them in a CPU's cache


@dataclass(frozen=True)
class DraftedPositions:
    """S positions to be drawn, of N rows of the batch, each row with up to K drafts.

    ``rows`` ``[N]`` int64 distinct; ``drafts`` ``[N, K]`` int64; ``draft_is_valid`` ``[N, K]`` bool; ``row_index``
    ``[S]`` int64 indexes ``rows``; ``num_ahead`` ``[S]`` int64 is how many drafts stand before the position.
    """

    rows: torch.Tensor
    drafts: torch.Tensor
    draft_is_valid: torch.Tensor
    row_index: torch.Tensor
    num_ahead: torch.Tensor


@dataclass(frozen=True)
class CompactPenalties:
    """What penalties do to the listed tokens of some positions; everything else stays as it is.

    ``positions`` ``[S]`` int64; ``token_ids`` ``[S, C]`` int32, distinct within a row, then -1;
    ``scaling`` and ``additive`` ``[S, C]`` float32, ``None`` where nothing scales or adds.
    """

    positions: torch.Tensor
    token_ids: torch.Tensor
    scaling: torch.Tensor | None
    additive: torch.Tensor | None

    def at(self, positions: torch.Tensor) -> CompactPenalties:
        """The same for positions renumbered: ``positions[i]`` is the new number of position i."""
        return CompactPenalties(positions[self.positions], self.token_ids, self.scaling, self.additive)


class BatchedPenalizerOrchestrator:
    """The penalizers of one batch, over one compact structure of token counts.

    The batch is held by a weak reference: the batch owns its orchestrator, and a cycle of two objects that hold
    device memory would live until the garbage collector runs.

    Change the batch in this order, as penalizers read its requests: set ``batch.reqs``, then :meth:`filter`;
    but :meth:`merge` first, then extend ``batch.reqs``.

    Parameters
    ----------
    vocab_size
        Width of the logits.
    batch
        Whose requests are penalised, in the order of its rows.
    penalizers
        Classes to use, by default all registered ones.
    """

    def __init__(
        self,
        vocab_size: int,
        batch: PenalizedBatch,
        penalizers: Iterable[type[BatchedPenalizer]] = PENALIZERS,
    ) -> None:
        self.vocab_size = vocab_size
        self._batch = weakref.ref(batch)
        wanted = set(penalizers)
        ordered = [kind for kind in PENALIZERS if kind in wanted]
        ordered += sorted(wanted.difference(PENALIZERS), key=lambda kind: kind.__name__)
        self.penalizers: dict[type[BatchedPenalizer], BatchedPenalizer] = {kind: kind() for kind in ordered}
        self.counts: TokenCounts | None = None
        self.is_required = False
        self._prepare_if_required()

    @property
    def batch(self) -> PenalizedBatch:
        batch = self._batch()
        if batch is None:
            raise ReferenceError("the batch of this orchestrator is gone")
        return batch

    @property
    def prepared(self) -> list[BatchedPenalizer]:
        return [penalizer for penalizer in self.penalizers.values() if penalizer.is_prepared]

    @property
    def num_bytes(self) -> int:
        """Bytes of device memory held by all penalties together."""
        values = [value for penalizer in self.prepared for value in vars(penalizer).values()]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        held = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return held + (self.counts.num_bytes if self.counts is not None else 0)

    def count_tokens(self, rows: torch.Tensor, token_ids: torch.Tensor, num_tokens: torch.Tensor) -> None:
        """Count the first ``num_tokens`` ``[N]`` of ``token_ids`` ``[N, K]`` in the distinct ``rows`` ``[N]``."""
        if not self.is_required:
            return
        if self.counts is not None:
            self.counts.reserve(token_ids.shape[1])
            for index in range(token_ids.shape[1]):
                self.counts.count(rows, token_ids[:, index], num_tokens > index)
        for penalizer in self.prepared:
            penalizer.advance(rows, num_tokens)

    def filter(self, keep_indices: torch.Tensor) -> None:
        """Keep the given rows, in the given order; penalizers that nobody needs any more give their memory back."""
        if not self.is_required:
            return
        reqs = self.batch.reqs
        for penalizer in self.prepared:
            if len(keep_indices) == 0 or not penalizer.is_required(reqs):
                penalizer.teardown()
            else:
                penalizer.filter(keep_indices)
        self.is_required = bool(self.prepared)
        if not any(penalizer.counts_tokens for penalizer in self.prepared):
            self.counts = None
        elif self.counts is not None:
            self.counts.filter(keep_indices)

    def merge(self, their: BatchedPenalizerOrchestrator) -> None:
        """Append another batch's rows to this batch's."""
        if not self.is_required and not their.is_required:
            return
        for kind, penalizer in self.penalizers.items():
            other = their.penalizers[kind]
            if not penalizer.is_prepared and not other.is_prepared:
                continue
            # Rows of a side that did not need the penalty get its neutral value.
            penalizer.ensure_prepared(self.batch.reqs, self.batch.device)
            other.ensure_prepared(their.batch.reqs, their.batch.device)
            penalizer.merge(other)
        self.is_required = True
        if any(penalizer.counts_tokens for penalizer in self.prepared):
            own_counts = self._ensure_counts()
            own_counts.merge(their._ensure_counts())

    def apply(self, logits: torch.Tensor, repeat: int | None = None) -> torch.Tensor:
        """Penalise ``logits`` ``[B, V]`` float32 in place by what was counted so far; returns it.

        With ``repeat`` the logits are ``[B * repeat, V]``: that many consecutive positions for each row, all
        penalised by the same counts. Positions that follow drafts go through :meth:`compact`, which counts those.
        """
        if not self.is_required:
            return logits
        num_rows = len(self.batch.reqs)
        each = repeat if repeat is not None else 1
        rows = torch.arange(num_rows, device=logits.device)
        none = torch.empty((num_rows, 0), dtype=torch.int64, device=logits.device)
        row_index = rows.repeat_interleave(each)
        positions = DraftedPositions(rows, none, none.bool(), row_index, torch.zeros_like(row_index))
        for compact in self.compact(positions):
            apply_compact_penalties(logits, compact)
        for suppressed in self.suppressions(positions):
            suppressed.apply(logits)
        return logits

    def compact(self, positions: DraftedPositions) -> Iterator[CompactPenalties]:
        """Scaling and additive penalties of some positions, in chunks of positions; drafts before one count."""
        if self.counts is None:
            return
        entries = []
        self.counts.reserve(positions.drafts.shape[1])
        for index in range(positions.drafts.shape[1]):
            valid = positions.draft_is_valid[:, index]
            entries.append(self.counts.find_or_insert(positions.rows, positions.drafts[:, index], valid))
        size = max(1, _CHUNK_ELEMENTS // self.counts.token_ids.shape[1])
        for start in range(0, len(positions.row_index), size):
            chunk = slice(start, start + size)
            row_index = positions.row_index[chunk]
            rows = positions.rows[row_index]
            counts = self.counts.counts[rows]
            for index, entry in enumerate(entries):
                ahead = (positions.num_ahead[chunk] > index) & positions.draft_is_valid[row_index, index]
                counts.scatter_add_(1, entry[row_index][:, None], ahead[:, None].to(torch.int32))
            scaling = self.accumulate_scaling_penalties(rows, counts)
            additive = self.accumulate_additive_penalties(rows, counts)
            if scaling is None and additive is None:
                return
            numbers = torch.arange(start, start + len(rows), device=rows.device)
            yield CompactPenalties(numbers, self.counts.token_ids[rows], scaling, additive)

    def suppressions(self, positions: DraftedPositions) -> Iterator[Suppressions]:
        """Tokens no draw may give at some positions."""

        def recent(num_tokens: int) -> torch.Tensor:
            if self.counts is None:
                raise RuntimeError("a penalizer that counts no tokens asked for them")
            counted = self.counts.recent(positions.rows, num_tokens)
            drafts = torch.where(positions.draft_is_valid, positions.drafts, -1).to(torch.int32)
            joined = torch.cat([counted, drafts], dim=1)[positions.row_index]
            columns = positions.num_ahead[:, None] + torch.arange(num_tokens, device=joined.device)
            return torch.gather(joined, 1, columns)

        yield from self._suppressions(positions.rows[positions.row_index], positions.num_ahead, recent)

    def accumulate_additive_penalties(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor | None:
        """Sum of all additive penalties for the entries of S positions: ``[S, C]`` float32."""
        kinds = [penalizer for penalizer in self.prepared if penalizer.is_additive]
        if not kinds:
            return None
        additive = torch.zeros(counts.shape, dtype=torch.float32, device=counts.device)
        for penalizer in kinds:
            penalizer.accumulate_additive_penalties(additive, rows, counts)
        return additive

    def accumulate_scaling_penalties(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor | None:
        """Product of all scaling penalties for the entries of S positions: ``[S, C]`` float32."""
        kinds = [penalizer for penalizer in self.prepared if penalizer.is_multiplicative]
        if not kinds or self.counts is None:
            return None
        scaling = torch.ones(counts.shape, dtype=torch.float32, device=counts.device)
        in_prompt = self.counts.in_prompt[rows]
        for penalizer in kinds:
            penalizer.accumulate_scaling_penalties(scaling, rows, counts, in_prompt)
        return scaling

    def _suppressions(
        self, rows: torch.Tensor, num_ahead: torch.Tensor, recent: RecentTokens
    ) -> Iterator[Suppressions]:
        for penalizer in self.prepared:
            suppressed = penalizer.suppressions(rows, num_ahead, recent)
            if suppressed is not None:
                yield suppressed

    def _prepare_if_required(self) -> None:
        batch = self.batch
        for penalizer in self.penalizers.values():
            self.is_required |= penalizer.prepare_if_required(batch.reqs, batch.device)
        if any(penalizer.counts_tokens for penalizer in self.prepared):
            self._ensure_counts()

    def _ensure_counts(self) -> TokenCounts:
        if self.counts is None:
            batch = self.batch
            self.counts = TokenCounts(len(batch.reqs), batch.device)
            for row, request in enumerate(batch.reqs):
                if request.sampling_params.penalize_prompt and request.prompt_token_ids:
                    self.counts.mark_prompt(row, request.prompt_token_ids)
        return self.counts


def apply_scaling_penalties(logits: torch.Tensor, scaling_penalties: torch.Tensor) -> torch.Tensor:
    """Divide positive logits by the penalty, multiply the others by it; both tensors have one shape."""
    return torch.where(logits > 0, logits / scaling_penalties, logits * scaling_penalties)


def apply_compact_penalties(logits: torch.Tensor, compact: CompactPenalties) -> None:
    """Scale, then add, in place: ``logits`` ``[S, V]`` float32, touching the listed tokens alone."""
    unused = compact.token_ids < 0
    token_ids = _repeat_first_entry(compact.token_ids, unused).clamp(min=0)
    index = (compact.positions[:, None] * logits.shape[1] + token_ids).view(-1)
    flat = logits.view(-1)
    values = flat[index]
    if compact.scaling is not None:
        values = apply_scaling_penalties(values, _repeat_first_entry(compact.scaling, unused).view(-1))
    if compact.additive is not None:
        values = values + _repeat_first_entry(compact.additive, unused).view(-1)
    flat[index] = values


def _repeat_first_entry(values: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
    """Fill the unused end of each list with its first entry: writing one value twice needs no branch and no sync."""
    return torch.where(unused, values[:, :1], values)

"""The orchestrator and its penalizers against dense ``B x V`` definitions."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling.orchestrator import BatchedPenalizerOrchestrator, apply_scaling_penalties
from sampling.params import SamplingParams
from sampling.penalizer import PenalizedRequest
from sampling.penalizers import (
    PENALIZERS,
    BatchedFrequencyPenalizer,
    BatchedMinNewTokensPenalizer,
    BatchedPenalizer,
    BatchedPresencePenalizer,
    BatchedRepetitionPenalizer,
)
from sampling.token_counts import TokenCounts

CPU = torch.device("cpu")
V = 50


@dataclass(frozen=True)
class Request:
    sampling_params: SamplingParams
    prompt_token_ids: Sequence[int] = ()
    eos_token_ids: Sequence[int] = (0,)


@dataclass(eq=False)
class Batch:
    reqs: list[Request] = field(default_factory=list)
    device: torch.device = CPU


def batch_of(*fields: dict[str, float]) -> Batch:
    return Batch([Request(SamplingParams(max_tokens=100, **own)) for own in fields])


def count_one_each(orchestrator: BatchedPenalizerOrchestrator, token_ids: torch.Tensor) -> None:
    """Count one generated token for every row of the batch: ``token_ids`` ``[B]``."""
    rows = torch.arange(len(token_ids))
    orchestrator.count_tokens(rows, token_ids[:, None], torch.ones_like(rows))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"repetition_penalty": 1.2}, 1.67),
        ({"frequency_penalty": 0.5}, 0.5),
        ({"presence_penalty": 0.5}, 1.5),
    ],
)
def test_worked_example_of_a_token_with_logit_2_seen_three_times(fields: dict[str, float], expected: float) -> None:
    batch = batch_of(fields)
    orchestrator = BatchedPenalizerOrchestrator(V, batch)
    for _ in range(3):
        count_one_each(orchestrator, torch.tensor([7]))
    logits = orchestrator.apply(torch.full((1, V), 2.0))
    assert round(logits[0, 7].item(), 2) == expected
    others = [token_id for token_id in range(V) if token_id != 7]
    assert (logits[0, others] == 2.0).all()


def test_repetition_multiplies_negative_logits() -> None:
    assert apply_scaling_penalties(torch.tensor([-1.0, 0.0, 3.0]), torch.tensor([1.5, 1.5, 1.5])).tolist() == [
        -1.5,
        0.0,
        2.0,
    ]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_one_penalty_alone_equals_its_dense_definition(data: st.DataObject) -> None:
    """``scatter_`` for repetition and presence, ``scatter_add_`` for frequency, bit for bit."""
    rows = data.draw(st.integers(1, 5))
    values = [data.draw(st.floats(0.125, 2.0, width=32)) for _ in range(rows)]
    outputs = torch.tensor(
        data.draw(st.lists(st.lists(st.integers(0, V - 1), min_size=rows, max_size=rows), max_size=30)),
        dtype=torch.int64,
    ).view(-1, rows)
    original = torch.randn(rows, V, generator=torch.Generator().manual_seed(len(outputs)))
    column = torch.tensor(values)[:, None]
    for name in ("repetition_penalty", "frequency_penalty", "presence_penalty"):
        batch = batch_of(*({name: value} for value in values))
        orchestrator = BatchedPenalizerOrchestrator(V, batch)
        dense = torch.ones(rows, V) if name == "repetition_penalty" else torch.zeros(rows, V)
        for output_ids in outputs:
            count_one_each(orchestrator, output_ids)
            if name == "frequency_penalty":
                dense.scatter_add_(1, output_ids[:, None], torch.ones(rows, 1))
            else:
                dense.scatter_(1, output_ids[:, None], column if name == "repetition_penalty" else 1.0)
        if name == "repetition_penalty":
            expected = torch.where(original > 0, original / dense, original * dense)
        else:
            expected = original - dense * column
        assert torch.equal(orchestrator.apply(original.clone()), expected), name


def test_minimum_new_tokens_suppresses_every_end_until_the_length_is_reached() -> None:
    batch = Batch(
        [
            Request(SamplingParams(max_tokens=9, min_tokens=2, stop_token_ids=(5, 6)), eos_token_ids=(0, 1)),
            Request(SamplingParams(max_tokens=9)),
            Request(SamplingParams(max_tokens=9, min_tokens=2, ignore_eos=True, stop_token_ids=(5,))),
        ]
    )
    orchestrator = BatchedPenalizerOrchestrator(V, batch)
    penalizer = orchestrator.penalizers[BatchedMinNewTokensPenalizer]
    assert isinstance(penalizer, BatchedMinNewTokensPenalizer)
    for length in range(3):
        assert penalizer.len_output_tokens.tolist() == [length] * 3
        suppressed = torch.isneginf(orchestrator.apply(torch.zeros(3, V)))
        ends = [[0, 1, 5, 6], [], [5]] if length < 2 else [[], [], []]
        assert [torch.nonzero(row).flatten().tolist() for row in suppressed] == ends
        count_one_each(orchestrator, torch.tensor([3, 3, 3]))
    values = penalizer.stop_token_penalties(torch.tensor([0]), torch.tensor([0]))
    assert values.tolist() == [[0.0, 0.0, 0.0, 0.0]]


def test_repeat_penalises_consecutive_positions_by_the_same_counts() -> None:
    batch = batch_of({"frequency_penalty": 1.0, "repetition_penalty": 1.3}, {"presence_penalty": 1.0})
    orchestrator = BatchedPenalizerOrchestrator(V, batch)
    count_one_each(orchestrator, torch.tensor([3, 4]))
    original = torch.randn(2, V)
    once = orchestrator.apply(original.clone())
    repeated = orchestrator.apply(original.repeat_interleave(3, dim=0), repeat=3)
    assert torch.equal(repeated, once.repeat_interleave(3, dim=0))


def test_nothing_is_allocated_when_no_request_asks() -> None:
    batch = batch_of({}, {"temperature": 0.5})
    orchestrator = BatchedPenalizerOrchestrator(V, batch)
    assert not orchestrator.is_required
    assert orchestrator.num_bytes == 0
    count_one_each(orchestrator, torch.tensor([1, 2]))
    logits = torch.zeros(2, V)
    assert orchestrator.apply(logits) is logits
    assert not logits.any()


def test_only_the_penalizers_that_are_asked_for_are_prepared() -> None:
    batch = batch_of({"presence_penalty": 1.0})
    orchestrator = BatchedPenalizerOrchestrator(V, batch)
    assert [type(penalizer) for penalizer in orchestrator.prepared] == [BatchedPresencePenalizer]


def test_filter_gives_back_what_nobody_needs_any_more() -> None:
    batch = batch_of({"presence_penalty": 1.0}, {"frequency_penalty": 1.0}, {"min_tokens": 3})
    orchestrator = BatchedPenalizerOrchestrator(V, batch)
    batch.reqs = batch.reqs[1:]
    orchestrator.filter(torch.tensor([1, 2]))
    assert not orchestrator.penalizers[BatchedPresencePenalizer].is_prepared
    batch.reqs = batch.reqs[1:]
    orchestrator.filter(torch.tensor([1]))
    assert orchestrator.counts is None
    assert orchestrator.is_required
    batch.reqs = []
    orchestrator.filter(torch.tensor([], dtype=torch.int64))
    assert not orchestrator.is_required
    assert orchestrator.num_bytes == 0


def test_merge_with_a_batch_that_needs_other_penalties_is_neutral_for_each_side() -> None:
    mine, theirs = batch_of({"presence_penalty": 1.0}), batch_of({"repetition_penalty": 2.0}, {})
    first = BatchedPenalizerOrchestrator(V, mine)
    second = BatchedPenalizerOrchestrator(V, theirs)
    count_one_each(first, torch.tensor([3]))
    count_one_each(second, torch.tensor([4, 5]))
    first.merge(second)
    mine.reqs += theirs.reqs
    logits = first.apply(torch.ones(3, V))
    expected = torch.ones(3, V)
    expected[0, 3], expected[1, 4] = 0.0, 0.5
    assert torch.equal(logits, expected)


def test_the_batch_is_held_weakly() -> None:
    batch = batch_of({"presence_penalty": 1.0})
    orchestrator = BatchedPenalizerOrchestrator(V, batch)
    gone = weakref.ref(batch)
    gc.disable()
    try:
        del batch
        assert gone() is None
    finally:
        gc.enable()
    with pytest.raises(ReferenceError, match="gone"):
        _ = orchestrator.batch


def test_a_new_penalizer_is_one_small_class() -> None:
    class FirstTimeBonus(BatchedPenalizer):
        """Adds 10 to every token that was generated exactly once."""

        is_additive = True

        @classmethod
        def is_required_by(cls, request: PenalizedRequest) -> bool:
            return True

        def _prepare(self, reqs: Sequence[PenalizedRequest], device: torch.device) -> None: ...
        def _filter(self, keep_indices: torch.Tensor) -> None: ...
        def _merge(self, their: BatchedPenalizer) -> None: ...
        def _teardown(self) -> None: ...

        def accumulate_additive_penalties(
            self, additive: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor
        ) -> None:
            additive.add_((counts == 1) * 10.0)

    batch = batch_of({"frequency_penalty": 1.0})
    orchestrator = BatchedPenalizerOrchestrator(V, batch, {*PENALIZERS, FirstTimeBonus})
    for token_id in (3, 4, 4):
        count_one_each(orchestrator, torch.tensor([token_id]))
    logits = orchestrator.apply(torch.zeros(1, V))
    assert logits[0, [2, 3, 4]].tolist() == [0.0, 9.0, -2.0]


def test_256_rows_of_a_large_vocabulary_fit_in_64_megabytes() -> None:
    """All penalties together, after 4096 tokens of which most are distinct; dense buffers would take 156 MB each."""
    fields = {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1, "min_tokens": 5000}
    vocab_size, num_rows = 152_000, 256
    batch = Batch([Request(SamplingParams(max_tokens=9000, **fields)) for _ in range(num_rows)])
    orchestrator = BatchedPenalizerOrchestrator(vocab_size, batch)
    assert orchestrator.counts is not None
    # The lists as 4096 steps would leave them; counting them one by one would take a minute.
    distinct = torch.stack([torch.randperm(vocab_size)[:4096] for _ in range(4)]).repeat(64, 1)
    orchestrator.counts.reserve(4096)
    orchestrator.counts.token_ids[:, :4096] = distinct.to(torch.int32)
    orchestrator.counts.counts[:, :4096] = 1
    orchestrator.counts.num_distinct[:] = 4096
    count_one_each(orchestrator, torch.full((num_rows,), 5))
    assert orchestrator.num_bytes < 64 * 2**20
    logits = torch.zeros(num_rows, vocab_size)
    orchestrator.apply(logits)
    assert (logits < 0).sum(dim=1).min() >= 4096


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 200), max_size=150))
def test_counts_stay_right_while_lists_grow(token_ids: list[int]) -> None:
    counts = TokenCounts(2, CPU)
    rows = torch.tensor([1])
    for token_id in token_ids:
        counts.reserve(1)
        counts.count(rows, torch.tensor([token_id]), torch.tensor([True]))
    held = dict(zip(counts.token_ids[1].tolist(), counts.counts[1].tolist(), strict=True))
    held.pop(-1, None)
    assert {token_id: count for token_id, count in held.items() if count} == {
        token_id: token_ids.count(token_id) for token_id in set(token_ids)
    }
    assert counts.len_output_tokens.tolist() == [0, len(token_ids)]
    recent = counts.recent(rows, 3)[0].tolist()
    assert recent == ([-1, -1, -1, *token_ids])[-3:]
    assert not counts.counts[0].any()


def test_rejected_drafts_do_not_make_the_lists_grow_without_end() -> None:
    counts = TokenCounts(1, CPU)
    rows, yes = torch.tensor([0]), torch.tensor([True])
    random = np.random.default_rng(0)
    for _ in range(500):
        counts.reserve(2)
        counts.find_or_insert(rows, torch.from_numpy(random.integers(0, 10_000, 1)), yes)
        counts.count(rows, torch.tensor([3]), yes)
    assert counts.token_ids.shape[1] <= 64


def test_merging_different_penalizers_is_an_error() -> None:
    with pytest.raises(TypeError, match="cannot merge"):
        BatchedMinNewTokensPenalizer().merge(BatchedFrequencyPenalizer())
    assert BatchedRepetitionPenalizer.is_multiplicative
    assert not BatchedFrequencyPenalizer.is_multiplicative

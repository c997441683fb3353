"""Draws follow the exact distribution, and the fast CPU path gives what the definition gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_reference import ReferenceChoice, kept_tokens, probabilities
from scipy import stats

from sampling import draw_cpu
from sampling.draw import draw, draw_torch
from sampling.draw_parameters import EVERY_TOKEN, DrawParameters
from sampling.noise import gumbel, position_keys, token_bits
from sampling.params import SamplingParams


def parameters(
    params: SamplingParams, size: int, *, seed: int = 0, positions: np.ndarray | None = None
) -> DrawParameters:
    whole = np.ones(size)
    positions = np.arange(size) if positions is None else positions
    return DrawParameters(
        whole * params.temperature,
        np.full(size, params.top_k if params.top_k > 0 else EVERY_TOKEN),
        whole * params.top_p,
        whole * params.min_p,
        position_keys(np.full(size, seed), np.zeros(size, np.int64), positions.astype(np.int64)),
    )


FILTERS = {
    "none": {},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 2.0},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.1},
    "all": {"temperature": 1.5, "top_k": 9, "top_p": 0.9, "min_p": 0.05},
}


@pytest.mark.parametrize("path", [draw, draw_torch], ids=["cpu", "tensors"])
@pytest.mark.parametrize("name", FILTERS)
def test_draws_follow_the_exact_distribution(name: str, path: object) -> None:
    params = SamplingParams(max_tokens=1, **FILTERS[name])
    logits = np.random.default_rng(3).normal(size=20).astype(np.float32)
    exact = probabilities(logits, params)
    size = 20_000
    drawn, failed = path(torch.from_numpy(np.tile(logits, (size, 1))), parameters(params, size, seed=11))
    assert not failed.any()
    counts = np.bincount(drawn.numpy(), minlength=len(logits))
    assert counts[exact == 0].sum() == 0
    assert stats.chisquare(counts[exact > 0], exact[exact > 0] * size).pvalue > 1e-3


def test_rare_tokens_are_drawn_as_rarely_as_they_should() -> None:
    """2000 tokens of probability 1e-5 each beside a certain one: the tail has 2 % of the draws, spread evenly."""
    logits = np.full(2001, np.log(1e-5), np.float32)
    logits[0] = np.log(0.98)
    size = 20_000
    drawn, _ = draw(torch.from_numpy(np.tile(logits, (size, 1))), parameters(SamplingParams(max_tokens=1), size))
    tail = drawn.numpy()[drawn.numpy() > 0]
    assert stats.binomtest(len(tail), size, 0.02).pvalue > 1e-3
    assert stats.kstest(tail / 2001, "uniform").pvalue > 1e-3


def test_draws_of_different_seeds_positions_and_choices_are_independent() -> None:
    logits = torch.zeros(4000, 4)
    for first, second in (((1, 0), (2, 0)), ((1, 0), (1, 1))):
        a, _ = draw(logits.clone(), parameters(SamplingParams(max_tokens=1), 4000, seed=first[0]))
        keys = position_keys(np.full(4000, second[0]), np.full(4000, second[1]), np.arange(4000))
        base = parameters(SamplingParams(max_tokens=1), 4000)
        b, _ = draw(logits.clone(), DrawParameters(base.temperature, base.top_k, base.top_p, base.min_p, keys))
        pairs = np.histogram2d(a.numpy(), b.numpy(), bins=4)[0]
        assert stats.chisquare(pairs.ravel()).pvalue > 1e-3
        assert stats.chisquare(np.histogram2d(a[:-1].numpy(), a[1:].numpy(), bins=4)[0].ravel()).pvalue > 1e-3


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_both_paths_equal_the_definition(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    size = data.draw(st.integers(1, 700))
    kind = data.draw(st.sampled_from(["normal", "equal", "few levels", "steep", "masked", "infinite"]))
    logits = (random.normal(size=size) * 4).astype(np.float32)
    if kind == "equal":
        logits[:] = 1.5
    elif kind == "few levels":
        logits = logits.round()
    elif kind == "steep":
        logits *= 1000
    elif kind == "masked":
        logits[random.random(size) < 0.9] = -np.inf
        logits[0] = 0
    elif kind == "infinite":
        logits[random.random(size) < 0.1] = np.inf
    params = SamplingParams(
        max_tokens=1,
        temperature=data.draw(st.sampled_from([1e-200, 1e-9, 0.1, 1.0, 2.0])),
        top_p=data.draw(st.sampled_from([1.0, 0.99, 0.5, 1e-9])),
        top_k=data.draw(st.sampled_from([-1, 1, 2, 50, 10_000])),
        min_p=data.draw(st.sampled_from([0.0, 1e-12, 0.1, 1.0])),
        seed=data.draw(st.integers(-(2**63), 2**63 - 1)),
    )
    assert params.seed is not None
    finite = np.minimum(logits, np.finfo(np.float32).max)
    expected = ReferenceChoice(params, [], (), params.seed).draw(finite, 9)
    own = parameters(params, 1, seed=params.seed, positions=np.array([9]))
    for path in (draw, draw_torch):
        drawn, failed = path(torch.from_numpy(logits.copy())[None], own)
        assert (drawn.item(), failed.item()) == (expected, False), path


@pytest.mark.parametrize("path", [draw, draw_torch], ids=["cpu", "tensors"])
@pytest.mark.parametrize("fields", [{}, {"top_p": 0.9}, {"top_p": 0.999}, {"min_p": 0.001}, {"top_k": 20_000}])
def test_a_wide_flat_row_equals_the_definition(path: object, fields: dict[str, float]) -> None:
    """No shortcut that only holds for a steep row is taken: the nucleus is most of the vocabulary."""
    params = SamplingParams(max_tokens=1, **fields)
    logits = (np.random.default_rng(5).normal(size=30_000) * 0.1).astype(np.float32)
    drawn, _ = path(torch.from_numpy(np.tile(logits, (3, 1))), parameters(params, 3, seed=5))
    choice = ReferenceChoice(params, [], (), 5)
    assert drawn.tolist() == [choice.draw(logits, position) for position in range(3)]


def test_two_tokens_too_close_for_float32_are_told_apart() -> None:
    """The CPU path looks for possible winners in float32: it must not decide there."""
    vocabulary, size = np.arange(64, dtype=np.uint32), 300
    logits = np.full((size, 64), -50, np.float32)
    params = SamplingParams(max_tokens=1)
    noise = gumbel(token_bits(np.ascontiguousarray(parameters(params, size, seed=3).keys.T)[:, :, None], vocabulary))
    for row, (first, second) in enumerate(noise[:, :2]):
        logits[row, :2] = min(0.0, second - first), min(0.0, first - second)
    scores = noise + logits
    assert np.abs(scores[:, 0] - scores[:, 1]).max() < 2e-6
    drawn, _ = draw(torch.from_numpy(logits), parameters(params, size, seed=3))
    assert drawn.tolist() == scores.argmax(axis=1).tolist()


def test_a_favourite_with_the_lowest_noise_there_is_wins_when_it_should() -> None:
    """Near the end of its range float32 noise is wrong by a third."""
    params, vocabulary = SamplingParams(max_tokens=1), np.arange(1 << 22, dtype=np.uint32)
    for seed in range(40):
        own = parameters(params, 1, seed=seed)
        bits = token_bits(own.keys[0], vocabulary)
        favourite = int(bits.argmax())
        if bits[favourite] > 2**32 - 40:
            break
    assert bits[favourite] > 2**32 - 40
    other = (favourite + 1) % len(vocabulary)
    lowest, noise = gumbel(bits[[favourite, other]])
    for lead, winner in ((0.02, favourite), (-0.02, other)):
        logits = np.full((1, len(vocabulary)), -80, np.float32)
        logits[0, favourite], logits[0, other] = 0.0, lowest - noise - lead
        assert draw(torch.from_numpy(logits), own)[0].item() == winner


@pytest.mark.parametrize("path", [draw, draw_torch], ids=["cpu", "tensors"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_rows_fail_and_leave_the_others_exact(path: object, temperature: float) -> None:
    params = SamplingParams(max_tokens=1, temperature=temperature)
    logits = torch.randn(5, 64, generator=torch.Generator().manual_seed(2))
    alone, _ = path(logits.clone(), parameters(params, 5))
    logits[1, 30] = float("nan")
    logits[3] = float("-inf")
    logits[4, 17] = float("inf")
    drawn, failed = path(logits, parameters(params, 5))
    assert failed.tolist() == [False, True, False, True, False]
    assert drawn[[0, 2]].tolist() == alone[[0, 2]].tolist()
    assert drawn[4] == 17


@pytest.mark.parametrize("deviation", [0.01, 1.0, 3.0])
def test_a_nucleus_ends_where_exact_shares_end(deviation: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is looked for with a sum in float32, and decided with an exact one where that could matter."""
    random = np.random.default_rng(7)
    logits = (random.normal(size=(6, 20_000)) * deviation).astype(np.float32)
    tokens = []
    for error in (draw_cpu._TOTAL_ERROR, math.inf):  # infinite: every sum is exact
        monkeypatch.setattr(draw_cpu, "_TOTAL_ERROR", error)
        workspace = draw_cpu._Workspace(20_000)
        filters = [draw_cpu._Filters(float(row.max()), 1.0, 20_000, p, 0.0) for row in logits for p in (0.5, 0.9, 0.99)]
        tokens.append(
            [draw_cpu._nucleus(logits[index // 3], own, workspace).tolist() for index, own in enumerate(filters)]
        )
    assert tokens[0] == tokens[1]


def test_equal_logits_are_cut_lowest_id_first() -> None:
    logits = np.array([1.0, 2.0, 2.0, 2.0, 0.0], np.float32)
    assert kept_tokens(logits, SamplingParams(max_tokens=1, top_k=2)) == [1, 2]
    size = 500
    drawn, _ = draw(
        torch.from_numpy(np.tile(logits, (size, 1))), parameters(SamplingParams(max_tokens=1, top_k=2), size)
    )
    assert set(drawn.tolist()) == {1, 2}


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0]])
    for path in (draw, draw_torch):
        assert path(logits.clone(), parameters(SamplingParams(max_tokens=1, temperature=0.0), 1))[0].item() == 1

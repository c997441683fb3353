"""Log-probabilities are the model's own, finite, and right for drawn, forced and masked tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from sampling_reference import pack_masks
from transformers.generation.logits_process import LogitNormalization

from sampling.logprobs import MINIMUM_LOGPROB, compute_logprobs, prompt_logprobs
from sampling.params import SamplingParams
from sampling.sampler import SampleRow, SamplerState

V = 500


def random_logits(rows: int) -> torch.Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(1)) * 5


def transformers_log_softmax(logits: torch.Tensor) -> torch.Tensor:
    processor = LogitNormalization()
    return processor(torch.zeros(len(logits), 1, dtype=torch.int64), logits)


def test_values_agree_with_transformers() -> None:
    logits = random_logits(8)
    drawn = torch.arange(8) * 50
    expected = transformers_log_softmax(logits)
    ours = compute_logprobs(logits, drawn, 20)
    assert torch.allclose(ours.logprobs, expected[torch.arange(8), drawn], atol=1e-4)
    values, ids = expected.topk(20, dim=1)
    assert torch.equal(ours.top_token_ids, ids)
    assert torch.allclose(ours.top_logprobs, values, atol=1e-4)


@pytest.mark.parametrize(
    "row",
    [
        [float("-inf")] * (V - 1) + [1.0],
        [float("-inf")] * V,
        [float("nan")] * V,
        [float("inf")] + [0.0] * (V - 1),
        [float("nan")] + [0.0] * (V - 1),
        [3e38, -3e38] * (V // 2),
    ],
)
def test_no_value_is_ever_infinite_or_nan(row: list[float]) -> None:
    logits = torch.tensor([row, [0.0] * V])
    entries = compute_logprobs(logits, torch.tensor([0, 0]), 20).to_lists([20, 20])
    for entry in entries:
        assert "NaN" not in (text := json.dumps([entry.logprob, *(top.logprob for top in entry.top)]))
        assert "Infinity" not in text
        assert all(MINIMUM_LOGPROB <= top.logprob <= 0.0 for top in entry.top)
    assert entries[1].logprob == pytest.approx(-torch.tensor(float(V)).log().item(), abs=1e-4)


def test_each_row_gets_as_many_as_it_asked_for() -> None:
    state = SamplerState(V, (0,), torch.device("cpu"))
    for key, count in {"none": None, "zero": 0, "two": 2, "twenty": 20}.items():
        state.add(key, SamplingParams(max_tokens=9, logprobs=count, temperature=0.0), (), seed=0)
    original = random_logits(5)
    rows = [SampleRow("none", 0), SampleRow("twenty", 0), SampleRow("two", 0, (1,)), SampleRow("zero", 0)]
    output = state.sample(original.clone(), rows)
    assert output.logprobs_of(0, 1) is None
    entries = {index: output.logprobs_of(index, 1) for index in (1, 2, 3)}
    expected = transformers_log_softmax(original)
    for (index, entry), position, count in zip(entries.items(), (1, 2, 4), (20, 2, 0), strict=True):
        assert entry is not None, index
        assert len(entry) == 1
        assert len(entry[0].top) == count
        assert entry[0].token_id == int(output.token_ids[position])
        assert entry[0].logprob == pytest.approx(expected[position].max().item(), abs=1e-4)
    assert len(output.logprobs_of(2, 2) or []) == 2


def test_masks_penalties_bias_and_temperature_leave_the_values_alone() -> None:
    """A forced token shows what the model itself thought of it, be that unlikely."""
    params = SamplingParams(
        max_tokens=9, logprobs=3, temperature=0.1, logit_bias={3: 50.0}, frequency_penalty=2.0, top_k=1, min_tokens=5
    )
    state = SamplerState(V, (0,), torch.device("cpu"))
    state.add("me", params, (), seed=0)
    state.add("other", SamplingParams(max_tokens=9), (), seed=0)
    original = random_logits(3)
    forced = int(original[0].argmin())
    masks = [[token_id == forced for token_id in range(V)], None, None]
    rows = [SampleRow("me", 0, (forced,)), SampleRow("other", 0)]
    output = state.sample(original.clone(), rows, torch.from_numpy(pack_masks(masks, V)))
    assert output.num_accepted.tolist() == [1, 0]
    entries = output.logprobs_of(0, 2)
    assert entries is not None
    expected = transformers_log_softmax(original)
    assert entries[0].token_id == forced
    for entry, row in zip(entries, expected, strict=False):
        assert entry.logprob == pytest.approx(row[entry.token_id].item(), abs=1e-4)
        assert [top.token_id for top in entry.top] == row.topk(3).indices.tolist()


@pytest.mark.parametrize("fields", [{"logit_bias": {3: 50.0}}, {"allowed_token_ids": (3,)}, {}])
def test_where_every_row_asks_the_values_are_still_those_before_any_edit(fields: dict[str, Any]) -> None:
    state = SamplerState(V, (0,), torch.device("cpu"))
    state.add("me", SamplingParams(max_tokens=9, logprobs=1, temperature=0.0, **fields), (), seed=0)
    original = random_logits(1)
    (entry,) = state.sample(original.clone(), [SampleRow("me", 0)]).logprobs_of(0, 1) or ()
    expected = transformers_log_softmax(original)[0]
    assert entry.token_id == (3 if fields else int(expected.argmax()))
    assert entry.logprob == pytest.approx(expected[entry.token_id].item(), abs=1e-4)
    assert entry.top[0].token_id == int(expected.argmax())


def test_prompt_logprobs_are_of_the_given_tokens() -> None:
    logits = random_logits(4)
    targets = torch.tensor([5, 6, 7, 8])
    expected = transformers_log_softmax(logits)
    entries = prompt_logprobs(logits, targets, 2)
    assert [entry.token_id for entry in entries] == targets.tolist()
    for entry, row in zip(entries, expected, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token_id].item(), abs=1e-4)
        assert len(entry.top) == 2


def test_a_long_prompts_temporaries_are_bounded_and_its_values_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = random_logits(33)
    logits[7, 3] = float("nan")
    targets = torch.arange(33)
    expected = compute_logprobs(logits, targets, 3)
    sizes = []
    logsumexp = torch.logsumexp

    def spy(part: torch.Tensor, dim: int) -> torch.Tensor:
        sizes.append(part.numel())
        return logsumexp(part, dim=dim)

    monkeypatch.setattr(torch, "logsumexp", spy)
    monkeypatch.setattr("sampling.logprobs._SLICE_ELEMENTS", 4 * V + 1)
    sliced = compute_logprobs(logits, targets, 3)
    assert max(sizes) == 4 * V
    for name in ("token_ids", "logprobs", "top_token_ids", "top_logprobs"):
        assert torch.equal(getattr(sliced, name), getattr(expected, name))

"""What a whole sampling step promises: independence of neighbours, lossless drafts, masks that always win."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from sampling_reference import pack_masks, probabilities
from scipy import stats

from sampling.params import SamplingParams
from sampling.sampler import SampleOutput, SampleRow, SamplerState

CPU = torch.device("cpu")
V = 200
EOS = 0
PENALISED: dict[str, Any] = {
    "temperature": 0.9,
    "top_p": 0.95,
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.7,
    "presence_penalty": 0.4,
    "min_tokens": 4,
    "logit_bias": {3: 2.0},
    "bad_words_token_ids": ((7, 8), (9,)),
}


def logits_behind(token_ids: Sequence[int]) -> torch.Tensor:
    """A model: the logits ``[V]`` depend on the tokens so far, and favour a few of them."""
    seed = hash(tuple(token_ids[-3:])) % 2**31
    return torch.randn(V, generator=torch.Generator().manual_seed(seed)) * 2


def decode(
    state: SamplerState, lives: dict[str, list[int]], steps: int, neighbours: Sequence[str] = ()
) -> dict[str, list[int]]:
    """Decode plainly; ``lives`` are extended in place."""
    for _ in range(steps):
        keys = [*lives, *neighbours]
        rows = [SampleRow(key, len(lives.get(key, []))) for key in keys]
        logits = torch.stack([logits_behind(lives.get(key, [1, 2])) for key in keys])
        output = state.sample(logits, rows)
        for index, key in enumerate(keys):
            if key in lives:
                lives[key].append(int(output.token_ids[index]))
    return lives


def new_state() -> SamplerState:
    return SamplerState(V, (EOS,), CPU)


def test_a_seeded_request_gives_the_same_tokens_alone_and_in_a_batch_of_32() -> None:
    alone = new_state()
    alone.add("me", SamplingParams(max_tokens=40, **PENALISED), (), seed=-7)
    expected = decode(alone, {"me": []}, 25)["me"]
    crowd = new_state()
    others = [f"other {index}" for index in range(31)]
    for index, key in enumerate(others):
        fields = PENALISED if index % 2 else {"temperature": index / 31 * 2, "frequency_penalty": 2.0 * (index % 3 > 0)}
        crowd.add(key, SamplingParams(max_tokens=40, **fields), (), seed=index)
    crowd.add("me", SamplingParams(max_tokens=40, **PENALISED), (), seed=-7)
    assert decode(crowd, {"me": []}, 25, others)["me"] == expected


def test_choices_of_one_request_differ_and_so_do_seeds() -> None:
    state = new_state()
    for seed in (1, 2):
        for choice in range(3):
            state.add(f"{seed}.{choice}", SamplingParams(max_tokens=40), (), seed=seed, choice_index=choice)
    lives = decode(state, {f"{seed}.{choice}": [] for seed in (1, 2) for choice in range(3)}, 12)
    assert len({tuple(life) for life in lives.values()}) == 6


def test_preemption_and_resumption_change_nothing() -> None:
    """A preempted row keeps its state and sits out: recomputing its KV draws nothing and counts nothing."""
    state = new_state()
    for key in ("me", "other"):
        state.add(key, SamplingParams(max_tokens=40, **PENALISED), (), seed=5)
    expected = decode(state, {"me": []}, 20)["me"]
    state.remove("me")
    state.add("me", SamplingParams(max_tokens=40, **PENALISED), (), seed=5)
    lives = decode(state, {"me": []}, 9)
    decode(state, {"other": []}, 6)
    assert decode(state, lives, 11)["me"] == expected


def decode_with_drafts(state: SamplerState, drafts_of: Any, count: int) -> list[int]:
    life: list[int] = []
    while len(life) < count:
        drafts = tuple(drafts_of(life))
        logits = torch.stack([logits_behind([*life, *drafts[:index]]) for index in range(len(drafts) + 1)])
        output = state.sample(logits, [SampleRow("me", len(life), drafts)])
        life += output.token_ids[: int(output.num_accepted[0]) + 1].tolist()
    return life[:count]


@pytest.mark.parametrize("quality", ["right", "wrong", "mixed"])
def test_drafts_of_any_quality_give_what_plain_decoding_gives(quality: str) -> None:
    plain = new_state()
    plain.add("me", SamplingParams(max_tokens=40, **PENALISED), (), seed=9)
    expected = decode(plain, {"me": []}, 40)["me"]
    random = np.random.default_rng(1)

    def drafts_of(life: list[int]) -> list[int]:
        following = expected[len(life) : len(life) + 4]
        if quality == "wrong" or (quality == "mixed" and random.random() < 0.5):
            following = [*following[:2], (following[-1] + 1) % V]
        return following

    state = new_state()
    state.add("me", SamplingParams(max_tokens=40, **PENALISED), (), seed=9)
    assert decode_with_drafts(state, drafts_of, 30) == expected[:30]


@pytest.mark.parametrize("draft", [0, 3, 11])
def test_verification_keeps_the_exact_distribution(draft: int) -> None:
    """A fixed draft, right or wrong: the tokens of both positions follow the exact distribution."""
    logits = np.random.default_rng(0).normal(size=(2, 12)).astype(np.float32)
    params = SamplingParams(max_tokens=2, temperature=1.2, top_p=0.95)
    size = 8000
    state = SamplerState(12, (0,), CPU)
    for key in range(size):
        state.add(key, params, (), seed=key)
    rows = [SampleRow(key, 0, (draft,)) for key in range(size)]
    output = state.sample(torch.from_numpy(np.tile(logits, (size, 1))), rows)
    first, second = output.token_ids.view(size, 2).T.numpy()
    exact = [probabilities(row, params) for row in logits]
    kept = exact[0] > 0
    assert stats.chisquare(np.bincount(first, minlength=12)[kept], exact[0][kept] * size).pvalue > 1e-3
    accepted = output.num_accepted.numpy() == 1
    assert (accepted == (first == draft)).all()
    kept = exact[1] > 0
    counts = np.bincount(second[accepted], minlength=12)
    assert counts[~kept].sum() == 0
    assert accepted.sum() < 200 or stats.chisquare(counts[kept], exact[1][kept] * accepted.sum()).pvalue > 1e-3


def test_a_draft_outside_the_vocabulary_is_rejected_and_decoding_goes_on() -> None:
    state = new_state()
    state.add("me", SamplingParams(max_tokens=9, temperature=0.0, frequency_penalty=1.0), (), seed=0)
    output = state.sample(torch.randn(4, V), [SampleRow("me", 0, (V, -1, 2**40))])
    assert output.num_accepted.tolist() == [0]
    assert not output.failed.any()


def masked(state: SamplerState, allowed: Sequence[int], logits: torch.Tensor | None = None) -> int:
    mask = [token_id in allowed for token_id in range(V)]
    words = torch.from_numpy(pack_masks([mask], V))
    output = state.sample(torch.zeros(1, V) if logits is None else logits, [SampleRow("me", 0)], words)
    assert not output.failed.any()
    return int(output.token_ids[0])


@pytest.mark.parametrize(
    "fields",
    [
        {"min_tokens": 5},
        {"min_tokens": 5, "stop_token_ids": (0, 1)},
        {"bad_words_token_ids": ((0,),)},
        {"min_tokens": 5, "bad_words_token_ids": ((0,), (1,), (0,))},
        {"logit_bias": {0: -100.0}},
        {"allowed_token_ids": (1, 2)},
        {"allowed_token_ids": (1, 2), "min_tokens": 5},
    ],
)
def test_the_grammar_wins_where_nothing_else_is_legal(fields: dict[str, Any]) -> None:
    for temperature in (0.0, 1.0):
        state = new_state()
        state.add("me", SamplingParams(max_tokens=9, temperature=temperature, **fields), (), seed=0)
        assert masked(state, [0]) == 0


def test_a_mask_that_forbids_only_the_vocabularys_last_token_holds() -> None:
    """The vocabulary is no multiple of 32: the last word of the mask is a partial one."""
    assert V % 32
    state = new_state()
    state.add("me", SamplingParams(max_tokens=9, temperature=0.0), (), seed=0)
    logits = torch.zeros(1, V)
    logits[0, -1], logits[0, 9] = 5.0, 1.0
    assert masked(state, range(V - 1), logits) == 9


def test_min_tokens_holds_where_the_grammar_leaves_something_else() -> None:
    state = new_state()
    state.add("me", SamplingParams(max_tokens=9, temperature=0.0, min_tokens=5), (), seed=0)
    logits = torch.zeros(1, V)
    logits[0, EOS] = 50.0
    assert masked(state, [EOS, 33], logits) == 33


def test_no_bias_moves_a_token_past_the_grammar() -> None:
    state = new_state()
    state.add("me", SamplingParams(max_tokens=9, temperature=0.0, logit_bias={5: 100.0}), (), seed=0)
    assert masked(state, [6, 7]) == 6


def test_an_allow_list_alone_lets_nothing_else_be_drawn() -> None:
    state = new_state()
    for key in range(64):
        state.add(key, SamplingParams(max_tokens=9, allowed_token_ids=(4, 199)), (), seed=key)
        state.add(f"free {key}", SamplingParams(max_tokens=9), (), seed=key)
    rows = [SampleRow(key, 0) for pair in range(64) for key in (pair, f"free {pair}")]
    drawn = state.sample(torch.zeros(128, V), rows).token_ids
    assert set(drawn[::2].tolist()) == {4, 199}
    assert len(set(drawn[1::2].tolist())) > 20


def test_a_bad_word_ends_only_where_its_beginning_was_just_generated() -> None:
    state = new_state()
    state.add("me", SamplingParams(max_tokens=9, temperature=0.0, bad_words_token_ids=((5, 6, 7),)), (), seed=0)
    wanted = torch.full((4, V), 0.0)
    for index, token_id in enumerate((7, 5, 6, 7)):
        wanted[index, token_id] = 9.0
    wanted[3, 8] = 5.0
    output = state.sample(wanted, [SampleRow("me", 0, (7, 5, 6))])
    assert output.token_ids.tolist() == [7, 5, 6, 8]


def test_a_request_whose_row_went_bad_leaves_every_other_row_exact() -> None:
    original = torch.randn(6, V, generator=torch.Generator().manual_seed(0))

    def step(broken: float | None) -> SampleOutput:
        state = new_state()
        for key in range(6):
            state.add(key, SamplingParams(max_tokens=9, logprobs=3, **PENALISED), (), seed=key)
        logits = original.clone()
        if broken is not None:
            logits[2] = broken
        words = torch.from_numpy(pack_masks([None, [token_id < 50 for token_id in range(V)]] * 3, V))
        return state.sample(logits, [SampleRow(key, 0) for key in range(6)], words)

    good = step(None)
    for broken in (float("nan"), float("-inf")):
        bad = step(broken)
        assert bad.failed.tolist() == [False, False, True, False, False, False]
        others = [0, 1, 3, 4, 5]
        assert bad.token_ids[others].tolist() == good.token_ids[others].tolist()
        assert [bad.logprobs_of(key, 1) for key in others] == [good.logprobs_of(key, 1) for key in others]


def test_a_broken_position_behind_a_rejected_draft_does_no_harm() -> None:
    for draft, fails in ((4, False), (3, True)):
        state = new_state()
        state.add("me", SamplingParams(max_tokens=9, temperature=0.0), (), seed=0)
        logits = torch.zeros(2, V)
        logits[0, 3] = 1.0
        logits[1] = float("nan")
        assert state.sample(logits, [SampleRow("me", 0, (draft,))]).failed.tolist() == [fails]


def test_steps_mix_inside_and_outside_of_inference_mode() -> None:
    state = new_state()
    state.add("me", SamplingParams(max_tokens=90, frequency_penalty=0.1), (), seed=5)
    with torch.inference_mode():
        life = decode(state, {"me": []}, 70)
    decode(state, life, 3)
    state.add("other", SamplingParams(max_tokens=90, frequency_penalty=0.1), (), seed=5)
    with torch.inference_mode():
        decode(state, life, 3, ["other"])
    state.remove("me")
    assert len(decode(state, {"other": []}, 2)["other"]) == 2


def test_the_prompt_counts_for_repetition_when_asked_and_for_nothing_else() -> None:
    for penalize_prompt, expected in ((False, 9), (True, 4)):
        state = new_state()
        params = SamplingParams(
            max_tokens=9, temperature=0.0, repetition_penalty=2.0, presence_penalty=2.0, penalize_prompt=penalize_prompt
        )
        state.add("me", params, [9], seed=0)
        logits = torch.zeros(1, V)
        logits[0, 9], logits[0, 4] = 4.0, 2.5
        assert state.sample(logits, [SampleRow("me", 0)]).token_ids.tolist() == [expected]


@pytest.mark.parametrize("penalty", [1e-300, 1e300])
def test_a_penalty_beyond_float32_breaks_no_row(penalty: float) -> None:
    """Zero times infinity would be NaN, and end a request whose model is in order."""
    state = new_state()
    state.add("me", SamplingParams(max_tokens=9, repetition_penalty=penalty, penalize_prompt=True), [3, 4, 5], seed=0)
    logits = torch.zeros(1, V)
    logits[0, 3], logits[0, 5] = float("-inf"), -1.0
    assert not state.sample(logits, [SampleRow("me", 0)]).failed.any()


def test_misuse_is_an_error() -> None:
    state = new_state()
    state.add("me", SamplingParams(max_tokens=9), (), seed=0)
    with pytest.raises(KeyError, match="sampling already"):
        state.add("me", SamplingParams(max_tokens=9), (), seed=0)
    with pytest.raises(KeyError):
        state.sample(torch.zeros(1, V), [SampleRow("you", 0)])
    with pytest.raises(ValueError, match="two rows"):
        state.sample(torch.zeros(2, V), [SampleRow("me", 0), SampleRow("me", 1)])
    with pytest.raises(ValueError, match="logits are"):
        state.sample(torch.zeros(2, V), [SampleRow("me", 0)])
    with pytest.raises(ValueError, match="mask is"):
        state.sample(torch.zeros(1, V), [SampleRow("me", 0)], torch.zeros(1, 3, dtype=torch.int32))
    state.remove("you")


def test_a_state_that_nobody_uses_any_more_holds_nothing() -> None:
    state = new_state()
    for key in range(4):
        state.add(key, SamplingParams(max_tokens=9, **PENALISED), (), seed=0)
    assert state.orchestrator.num_bytes > 0
    for key in range(4):
        state.remove(key)
    assert state.orchestrator.num_bytes == 0


def test_a_broken_position_accepts_no_draft() -> None:
    state = new_state()
    state.add("me", SamplingParams(max_tokens=9, temperature=0.0), (), seed=0)
    logits = torch.zeros(2, V)
    logits[0] = float("nan")
    output = state.sample(logits, [SampleRow("me", 0, (0,))])
    assert output.failed.tolist() == [True]
    assert output.num_accepted.tolist() == [0]

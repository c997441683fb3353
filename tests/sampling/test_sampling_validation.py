"""Every bad value is refused with the name of its field and what to change."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sampling.params import SamplingParams
from sampling.validation import SamplingParamsError, validate_sampling_params

V = 1000

REFUSED: list[tuple[str, Any]] = [
    ("n", 0),
    ("n", 10_000),
    ("n", True),
    ("n", 1.0),
    ("max_tokens", 0),
    ("max_tokens", -5),
    ("max_tokens", "9"),
    ("min_tokens", -1),
    ("min_tokens", 101),
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", "hot"),
    ("temperature", False),
    ("temperature", None),
    ("top_p", 0.0),
    ("top_p", -1.0),
    ("top_p", 1.01),
    ("top_p", math.nan),
    ("top_k", 0),
    ("top_k", -2),
    ("top_k", 2.5),
    ("min_p", -0.01),
    ("min_p", 1.01),
    ("min_p", math.nan),
    ("seed", 2**63),
    ("seed", -(2**63) - 1),
    ("seed", 1.5),
    ("seed", True),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", -1.0),
    ("repetition_penalty", math.inf),
    ("penalize_prompt", 1),
    ("frequency_penalty", 2.01),
    ("frequency_penalty", -2.01),
    ("frequency_penalty", math.nan),
    ("presence_penalty", 2.01),
    ("presence_penalty", -math.inf),
    ("logit_bias", {V: 1.0}),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {"5": 1.0}),
    ("logit_bias", {5: 100.5}),
    ("logit_bias", {5: math.nan}),
    ("logit_bias", {5: -math.inf}),
    ("logit_bias", {5: True}),
    ("logit_bias", dict.fromkeys(range(100_000), 1.0)),
    ("logit_bias", [1]),
    ("allowed_token_ids", ()),
    ("allowed_token_ids", (V,)),
    ("allowed_token_ids", (1.5,)),
    ("bad_words", ((),)),
    ("bad_words", ((V,),)),
    ("bad_words", ((1,),) * 257),
    ("bad_words", ((1,) * 65,)),
    ("stop_token_ids", (V,)),
    ("stop_token_ids", (-1,)),
    ("stop_token_ids", (1,) * 257),
    ("stop", (b"",)),
    ("include_stop_str_in_output", "yes"),
    ("ignore_eos", 0),
    ("logprobs", 21),
    ("logprobs", -1),
    ("logprobs", True),
    ("prompt_logprobs", 21),
]


def params_with(name: str, value: Any) -> SamplingParams:
    fields: dict[str, Any] = {"max_tokens": 100}
    fields["bad_words_token_ids" if name == "bad_words" else name] = value
    return SamplingParams(**fields)


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=[f"{name}={str(value)[:30]}" for name, value in REFUSED])
def test_a_bad_value_is_refused_by_the_name_of_its_field(name: str, value: Any) -> None:
    with pytest.raises(SamplingParamsError) as refused:
        validate_sampling_params(params_with(name, value), vocab_size=V)
    assert refused.value.param == name
    assert f"'{name}'" in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 128),
        ("min_tokens", 100),
        ("temperature", 0),
        ("temperature", 2),
        ("temperature", 1e-300),
        ("top_p", 1e-12),
        ("top_k", -1),
        ("top_k", 10**9),
        ("min_p", 1),
        ("seed", 2**63 - 1),
        ("seed", -(2**63)),
        ("repetition_penalty", 0.01),
        ("frequency_penalty", -2),
        ("presence_penalty", 2.0),
        ("logit_bias", {0: -100, V - 1: 100.0}),
        ("logit_bias", dict.fromkeys(range(V), 1.0)),
        ("allowed_token_ids", (0, V - 1)),
        ("bad_words", ((1, 2), (3,))),
        ("logprobs", 0),
        ("logprobs", 20),
    ],
)
def test_the_ends_of_every_range_are_accepted(name: str, value: Any) -> None:
    validate_sampling_params(params_with(name, value), vocab_size=V)


def test_several_choices_may_be_greedy() -> None:
    validate_sampling_params(SamplingParams(max_tokens=5, n=3, temperature=0.0), vocab_size=V)


def test_scoring_alone_needs_prompt_logprobs() -> None:
    validate_sampling_params(SamplingParams(max_tokens=0, prompt_logprobs=0), vocab_size=V)
    with pytest.raises(SamplingParamsError, match="max_tokens"):
        validate_sampling_params(SamplingParams(max_tokens=0), vocab_size=V)


def test_bad_words_that_forbid_the_whole_allow_list_are_a_contradiction() -> None:
    params = SamplingParams(max_tokens=5, allowed_token_ids=(1, 2), bad_words_token_ids=((1,), (2,), (3,)))
    with pytest.raises(SamplingParamsError, match="'bad_words' forbids every token"):
        validate_sampling_params(params, vocab_size=V)

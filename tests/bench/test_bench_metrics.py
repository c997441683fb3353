from __future__ import annotations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.serve.answer import Answer
from bench.serve.client import Failure
from bench.serve.metrics import Objectives, figures, percentile, ratios, spread

OBJECTIVES = Objectives(ttft_ms=100, itl_ms=20)


def answer(*arrivals: float, tokens: int | None = None, **more: object) -> Answer:
    return Answer(
        arrivals=list(arrivals),
        arrival_token_counts=[0] * len(arrivals),
        usage_completion_tokens=tokens,
        finish_reason="stop",
        seconds=arrivals[-1] if arrivals else 0.0,
        **more,  # type: ignore[arg-type]
    )


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_percentile_agrees_with_numpy(values: list[float], share: float) -> None:
    assert percentile(values, share) == pytest.approx(float(numpy.quantile(values, share)), rel=1e-9, abs=1e-6)


def test_percentile_of_nothing_is_nothing() -> None:
    assert percentile([], 0.5) is None


def test_time_per_output_token_counts_from_the_first_event() -> None:
    assert answer(1.0, 1.5, 2.0, tokens=5).time_per_output_token == pytest.approx(0.25)
    named = Answer(arrivals=[1.0, 2.0], arrival_token_counts=[3, 2], usage_completion_tokens=5)
    assert named.time_per_output_token == pytest.approx(0.5)
    assert answer(1.0, tokens=1).time_per_output_token is None


def test_tokens_are_counted_by_usage_before_ids_before_events() -> None:
    by_ids = Answer(arrivals=[1.0, 2.0], arrival_token_counts=[3, 2])
    assert (by_ids.output_tokens, by_ids.count_source) == (5, "token_ids")
    by_ids.usage_completion_tokens = 6
    assert (by_ids.output_tokens, by_ids.count_source) == (6, "usage")
    assert (answer(1.0, 2.0).output_tokens, answer(1.0, 2.0).count_source) == (2, "events")


def test_rates_are_over_the_whole_run_and_leave_failed_requests_out() -> None:
    failed = answer(0.05, tokens=50, failure=Failure("closed", ""), prompt_tokens=1000)
    result = figures(
        [answer(0.1, 0.2, tokens=10, prompt_tokens=30), answer(0.3, 0.4, tokens=30, prompt_tokens=50), failed],
        seconds=4.0,
        objectives=OBJECTIVES,
    )
    assert result["output_tokens_per_second"] == pytest.approx(10)
    assert result["prompt_tokens_per_second"] == pytest.approx(20)
    assert result["failed"] == 1
    assert result["ttft_p50_ms"] == pytest.approx(200)
    assert result["itl_p50_ms"] == pytest.approx(100)


def test_goodput_is_the_share_that_meets_both_objectives() -> None:
    good = answer(0.05, 0.06, 0.07)
    late = answer(0.15, 0.16)
    halting = answer(0.05, 0.06, 0.10)
    single = answer(0.05)
    failed = answer(0.05, failure=Failure("closed", ""))
    result = figures([good, late, halting, single, failed], seconds=2.0, objectives=OBJECTIVES)
    assert result["goodput_share"] == pytest.approx(2 / 5)
    assert result["goodput_requests_per_second"] == pytest.approx(1.0)


def test_valid_share_of_finished_leaves_cut_answers_out() -> None:
    cut = answer(0.1, is_valid=False)
    cut.finish_reason = "length"
    result = figures([answer(0.1, is_valid=True), answer(0.1, is_valid=False), cut, answer(0.1)], 1.0, OBJECTIVES)
    assert result["valid_share_of_finished"] == pytest.approx(1 / 2)
    assert result["valid_share"] == pytest.approx(1 / 3)
    assert result["finished_share"] == pytest.approx(2 / 3)


def test_a_run_of_failures_alone_has_no_latencies() -> None:
    result = figures([Answer(failure=Failure("connect", ""))], 1.0, OBJECTIVES)
    assert result["ttft_p50_ms"] is None
    assert result["output_tokens_per_second"] == 0
    assert result["goodput_share"] == 0


def test_spread_is_median_and_extremes_of_known_values() -> None:
    values = spread([3.0, None, 1.0, 2.0])
    assert values is not None
    assert (values.median, values.low, values.high) == (2.0, 1.0, 3.0)
    assert spread([None]) is None


def test_ratios_are_taken_within_each_repeat() -> None:
    # The machine was half as fast in the second repeat, for both.
    ours = [{"x": 20.0}, {"x": 10.0}, {"x": None}]
    theirs = [{"x": 10.0}, {"x": 5.0}, {"x": 1.0}]
    result = ratios(ours, theirs, "x")
    assert result is not None
    assert (result.low, result.median, result.high) == (2.0, 2.0, 2.0)

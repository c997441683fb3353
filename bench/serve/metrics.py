"""What a run's answers amount to."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench.serve.answer import Answer

Figures = dict[str, float | None]


@dataclass(frozen=True)
class Metric:
    """One figure of a run."""

    key: str
    title: str
    better: Literal["higher", "lower"]


METRICS = (
    Metric("output_tokens_per_second", "output tok/s", "higher"),
    Metric("prompt_tokens_per_second", "prompt tok/s", "higher"),
    Metric("ttft_p50_ms", "TTFT p50 ms", "lower"),
    Metric("ttft_p99_ms", "TTFT p99 ms", "lower"),
    Metric("itl_p50_ms", "ITL p50 ms", "lower"),
    Metric("itl_p99_ms", "ITL p99 ms", "lower"),
    Metric("tpot_p50_ms", "TPOT p50 ms", "lower"),
    Metric("e2e_p50_ms", "e2e p50 ms", "lower"),
    Metric("e2e_p99_ms", "e2e p99 ms", "lower"),
    Metric("goodput_share", "goodput", "higher"),
    Metric("valid_share_of_finished", "valid", "higher"),
)
"""The figures that are printed and compared, in print order. JSON results hold more."""


@dataclass(frozen=True, kw_only=True)
class Objectives:
    """What a good request is. Milliseconds."""

    ttft_ms: float
    itl_ms: float

    def are_met_by(self, answer: Answer) -> bool:
        """The first token came in time, and so did 99 % of the events that followed it. A failed request never does."""
        if answer.failure is not None or answer.time_to_first_token is None:
            return False
        gap = percentile(answer.gaps, 0.99)
        return answer.time_to_first_token * 1000 <= self.ttft_ms and (gap is None or gap * 1000 <= self.itl_ms)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which a ``share`` of 0 to 1 lies, linear between neighbours; ``None`` of nothing.

    Type 7 of Hyndman and Fan, "Sample quantiles in statistical packages" (1996), numpy's default.
    """
    if not values:
        return None
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    index = min(int(position), len(ordered) - 2) if len(ordered) > 1 else 0
    if len(ordered) == 1:
        return ordered[0]
    return ordered[index] + (position - index) * (ordered[index + 1] - ordered[index])


def figures(answers: Sequence[Answer], seconds: float, objectives: Objectives) -> Figures:
    """The figures of one run.

    Rates and latencies are those of requests that succeeded; ``seconds`` is the length of the whole run, so that
    failures cost throughput. Shares are of all requests, failed ones included, unless their name says otherwise.
    """
    good = [answer for answer in answers if answer.failure is None]
    output_tokens = sum(answer.output_tokens for answer in good)
    prompt_tokens = [answer.prompt_tokens for answer in good if answer.prompt_tokens is not None]
    cached_tokens = [answer.cached_tokens for answer in good if answer.cached_tokens is not None]
    first = [answer.time_to_first_token for answer in good if answer.time_to_first_token is not None]
    gaps = [gap for answer in good for gap in answer.gaps]
    per_token = [answer.time_per_output_token for answer in good if answer.time_per_output_token is not None]
    whole = [answer.seconds for answer in good]
    met = sum(objectives.are_met_by(answer) for answer in answers)
    checked = [answer for answer in answers if answer.is_valid is not None]
    finished = [answer for answer in checked if answer.failure is None and answer.finish_reason == "stop"]
    return {
        "requests": len(answers),
        "failed": len(answers) - len(good),
        "seconds": seconds,
        "output_tokens": output_tokens,
        "output_tokens_per_second": output_tokens / seconds,
        "prompt_tokens_per_second": sum(prompt_tokens) / seconds if prompt_tokens else None,
        "requests_per_second": len(good) / seconds,
        "ttft_p50_ms": _milliseconds(percentile(first, 0.5)),
        "ttft_p99_ms": _milliseconds(percentile(first, 0.99)),
        "itl_p50_ms": _milliseconds(percentile(gaps, 0.5)),
        "itl_p99_ms": _milliseconds(percentile(gaps, 0.99)),
        "tpot_p50_ms": _milliseconds(percentile(per_token, 0.5)),
        "tpot_p99_ms": _milliseconds(percentile(per_token, 0.99)),
        "e2e_p50_ms": _milliseconds(percentile(whole, 0.5)),
        "e2e_p99_ms": _milliseconds(percentile(whole, 0.99)),
        "goodput_share": _share(met, len(answers)),
        "goodput_requests_per_second": met / seconds,
        "valid_share": _share(sum(bool(answer.is_valid) for answer in checked), len(checked)),
        "valid_share_of_finished": _share(sum(bool(answer.is_valid) for answer in finished), len(finished)),
        "finished_share": _share(len(finished), len(checked)),
        "mean_prompt_tokens": statistics.fmean(prompt_tokens) if prompt_tokens else None,
        "mean_output_tokens": output_tokens / len(good) if good else None,
        "cached_prompt_share": _share(sum(cached_tokens), sum(prompt_tokens)) if cached_tokens else None,
        "tokens_per_event": _share(output_tokens, sum(len(answer.arrivals) for answer in good)),
    }


def failures(answers: Sequence[Answer]) -> dict[str, int]:
    """How many requests failed, by kind."""
    return dict(Counter(answer.failure.kind for answer in answers if answer.failure is not None))


def first_failures(answers: Sequence[Answer]) -> dict[str, str]:
    """The first message of each kind of failure."""
    messages: dict[str, str] = {}
    for answer in answers:
        if answer.failure is not None:
            messages.setdefault(answer.failure.kind, answer.failure.message[:500])
    return messages


def finish_reasons(answers: Sequence[Answer]) -> dict[str, int]:
    return dict(Counter(answer.finish_reason for answer in answers if answer.finish_reason is not None))


def count_sources(answers: Sequence[Answer]) -> dict[str, int]:
    """How many successful requests were counted by usage, by token ids and, for want of those, by events."""
    return dict(Counter(answer.count_source for answer in answers if answer.failure is None))


@dataclass(frozen=True)
class Spread:
    """A figure over repeats."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float | None]) -> Spread | None:
    """Median, least and greatest of the repeats that have the figure."""
    known = [value for value in values if value is not None]
    return Spread(statistics.median(known), min(known), max(known)) if known else None


def ratios(ours: Sequence[Figures], theirs: Sequence[Figures], key: str) -> Spread | None:
    """The quotient of a figure, taken within each repeat, where both servers met the same state of the machine."""
    pairs = [(one.get(key), other.get(key)) for one, other in zip(ours, theirs, strict=True)]
    return spread([one / other for one, other in pairs if one is not None and other])


def rounded(values: dict[str, Any]) -> dict[str, Any]:
    """Floats cut to what a measurement can mean."""
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in values.items()}


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None

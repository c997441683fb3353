"""Metrics of drafting, as the scheduler reports it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from scheduler.messages import SchedulerStats

_GRAMMAR = "grammar"


def drafter_metrics(stats: SchedulerStats) -> Iterator[Metric]:
    """Families labelled by kind of draft, and what drafts have spared."""
    proposed = CounterMetricFamily(
        "scansion_draft_tokens_proposed", "Tokens proposed as drafts and verified.", labels=["drafter"]
    )
    accepted = CounterMetricFamily(
        "scansion_draft_tokens_accepted", "Proposed tokens that became output.", labels=["drafter"]
    )
    lengths = HistogramMetricFamily("scansion_draft_accepted_length", "Tokens accepted of a draft.", labels=["drafter"])
    for name, drafter in sorted(stats.drafters.items()):
        proposed.add_metric([name], drafter.proposed_tokens)
        accepted.add_metric([name], drafter.accepted_tokens)
        counts = list(accumulate(drafter.drafts_by_accepted)) or [0]
        buckets = [(str(float(length)), float(count)) for length, count in enumerate(counts)]
        lengths.add_metric([name], [*buckets, ("+Inf", float(counts[-1]))], drafter.accepted_tokens)
    yield proposed
    yield accepted
    yield lengths
    # Without the draft each of these tokens would have been a row of a later step.
    yield CounterMetricFamily(
        "scansion_draft_steps_saved",
        "Steps that requests were spared, added up over requests.",
        sum(drafter.accepted_tokens for drafter in stats.drafters.values()),
    )
    jumped = stats.drafters[_GRAMMAR].accepted_tokens if _GRAMMAR in stats.drafters else 0
    yield CounterMetricFamily(
        "scansion_generated_tokens_without_jump_forward",
        "Generated tokens that no grammar draft had proposed.",
        stats.generated_tokens_total - jumped,
    )

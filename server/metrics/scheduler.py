"""Metrics of the schedulers, as they report them; with several groups of ranks each has a label ``group``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from constrained.stats import COUNTERS
from scheduler.messages import SchedulerStats
from server.metrics.drafters import drafter_metrics

_GAUGES = {
    "running_requests": "Choices that run.",
    "waiting_requests": "Choices that wait for a place in the batch, for the first time or after a preemption.",
    "grammar_queue_requests": "Requests that wait for their grammar.",
    "grammar_cache_bytes": "Memory that compiled grammars are counted with, at most --grammar-cache-bytes.",
    "kv_tokens_used": "Tokens in KV pages that running requests refer to.",
    "kv_tokens_cached": "Tokens in KV pages that only the prefix cache holds.",
    "kv_tokens_capacity": "Tokens the KV pool has room for.",
}
_COUNTERS = {
    "prompt_tokens_total": "Prompt tokens of requests that began to run.",
    "cached_tokens_total": "Of those, tokens found in the prefix cache.",
    "generated_tokens_total": "Tokens the scheduler generated.",
    "preemptions_total": "Times a choice gave its KV pages back for want of room, to be computed again later.",
    "steps_total": "Forward passes the scheduler launched.",
    "requests_aborted_total": "Requests that were aborted, because their client left or asked for it.",
}
FURTHER_COUNTERS = {
    **COUNTERS,
    "grammar_forced_tokens_total": "Tokens that a grammar forced and jump-forward proposed as drafts.",
    "refused_frames_total": "Messages of HTTP processes that the scheduler could not read: a fault of the server.",
}
"""What :attr:`SchedulerStats.counters` may hold."""


def scheduler_metrics(stats: Sequence[SchedulerStats | None]) -> bytes:
    """The text exposition of each group's counters and gauges; ``None`` for a group that is not there."""
    registry = CollectorRegistry()
    registry.register(_SchedulerCollector(stats))
    return generate_latest(registry)


class _SchedulerCollector(Collector):
    def __init__(self, stats: Sequence[SchedulerStats | None]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for group, stats in enumerate(self._stats):
            labels = {"group": str(group)} if len(self._stats) > 1 else {}
            for family in _families_of(stats):
                known = families.setdefault(family.name, family)
                samples = [
                    sample._replace(labels={**labels, **sample.labels}) if labels else sample
                    for sample in family.samples
                ]
                known.samples = samples if known is family else [*known.samples, *samples]
        yield from families.values()


def _families_of(stats: SchedulerStats | None) -> Iterator[Metric]:
    yield GaugeMetricFamily("scansion_scheduler_up", "Whether the scheduler answers.", float(stats is not None))
    if stats is None:
        return
    for name, text in _GAUGES.items():
        yield GaugeMetricFamily(f"scansion_{name}", text, getattr(stats, name))
    for name, text in _COUNTERS.items():
        yield CounterMetricFamily(f"scansion_scheduler_{name}", text, getattr(stats, name))
    capacity = stats.kv_tokens_capacity
    yield GaugeMetricFamily(
        "scansion_kv_usage_ratio",
        "Share of the KV pool that running requests refer to.",
        stats.kv_tokens_used / capacity if capacity else 0.0,
    )
    yield GaugeMetricFamily(
        "scansion_prefix_cache_hit_ratio",
        "Share of prompt tokens found in the prefix cache, since start.",
        stats.cached_tokens_total / stats.prompt_tokens_total if stats.prompt_tokens_total else 0.0,
    )
    yield from drafter_metrics(stats)
    for name, value in sorted(stats.counters.items()):
        yield CounterMetricFamily(f"scansion_{name}", FURTHER_COUNTERS[name], value)

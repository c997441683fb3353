"""Prometheus metrics of one HTTP process, and of the scheduler as it reports them.

With several HTTP processes prometheus-client's multiprocess mode adds their counters up: the worker sets
``PROMETHEUS_MULTIPROC_DIR`` before this module is imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from scheduler.messages import SchedulerStats
from server.drafter_metrics import drafter_metrics

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1, 2.5)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)


class Metrics:
    """Counters and histograms, each process on its own registry."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        registry = self._registry
        self.requests = Counter(
            "scansion_requests", "HTTP requests.", ("endpoint", "method", "status"), registry=registry
        )
        self.prompt_tokens = Counter("scansion_prompt_tokens", "Prompt tokens of admitted requests.", registry=registry)
        self.generated_tokens = Counter("scansion_generated_tokens", "Generated tokens.", registry=registry)
        self.disconnects = Counter(
            "scansion_client_disconnects", "Requests whose client left before the end.", registry=registry
        )
        self.time_to_first_token = Histogram(
            "scansion_time_to_first_token_seconds",
            "From the request's arrival to its first token.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.inter_token = Histogram(
            "scansion_inter_token_latency_seconds",
            "Between two messages with tokens of one choice.",
            buckets=_TOKEN_SECONDS,
            registry=registry,
        )
        self.grammar_wait = Histogram(
            "scansion_grammar_wait_seconds",
            "From a constrained request's arrival at the scheduler until its grammar was ready; 0 for a known one.",
            ("backend",),
            buckets=(0.0, *_SECONDS),
            registry=registry,
        )
        self.end_to_end = Histogram(
            "scansion_request_duration_seconds",
            "From the request's arrival to the end of its answer.",
            ("endpoint",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.request_prompt_tokens = Histogram(
            "scansion_request_prompt_tokens", "Prompt tokens of a request.", buckets=_TOKENS, registry=registry
        )
        self.request_generated_tokens = Histogram(
            "scansion_request_generated_tokens", "Generated tokens of a request.", buckets=_TOKENS, registry=registry
        )

    def render(self, stats: SchedulerStats | None) -> bytes:
        """The text exposition; ``stats`` is ``None`` while the scheduler is not there."""
        registry = self._registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        scheduler = CollectorRegistry()
        scheduler.register(_SchedulerCollector(stats))
        return generate_latest(registry) + generate_latest(scheduler)


_GAUGES = {
    "running_requests": "Choices that run.",
    "waiting_requests": "Requests that wait to run.",
    "grammar_queue_requests": "Requests that wait for their grammar.",
    "kv_tokens_used": "Tokens in KV pages that running requests refer to.",
    "kv_tokens_cached": "Tokens in KV pages that only the prefix cache holds.",
    "kv_tokens_capacity": "Tokens the KV pool holds.",
}
_COUNTERS = {
    "prompt_tokens_total": "Prompt tokens the scheduler took in.",
    "cached_tokens_total": "Prompt tokens found in the prefix cache.",
    "generated_tokens_total": "Tokens the scheduler generated.",
    "preemptions_total": "Requests that gave their pages back and ran again.",
    "steps_total": "Steps of the scheduler.",
    "requests_aborted_total": "Requests that were aborted.",
}


class _SchedulerCollector(Collector):
    def __init__(self, stats: SchedulerStats | None) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
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
            metric = f"scansion_{re.sub('[^a-zA-Z0-9_]', '_', name)}"
            if name.endswith("_total"):
                yield CounterMetricFamily(metric, "Reported by the scheduler.", value)
            else:
                yield GaugeMetricFamily(metric, "Reported by the scheduler.", value)

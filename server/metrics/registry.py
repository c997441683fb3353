"""Prometheus metrics of one HTTP process, and of the schedulers as they report them.

With several HTTP processes prometheus-client's multiprocess mode adds their counters up: the worker sets
``PROMETHEUS_MULTIPROC_DIR`` before this module is imported.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from scheduler.messages import SchedulerStats
from server.metrics.scheduler import scheduler_metrics

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1, 2.5)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)

_RESERVED_BYTES = 1 << 20
"""Several times what all values of one kind need: a file that had to grow would not be reserved any more."""


def reserve_values(directory: Path) -> None:
    """Write the files in which prometheus-client keeps this process's values, before it maps them into memory.

    It would make them sparse, and on a full disk the first touch of a page that has no block is a SIGBUS.

    Raises
    ------
    OSError
        There is no room.
    """
    for kind in ("counter", "histogram"):
        try:
            (directory / f"{kind}_{os.getpid()}.db").write_bytes(bytes(_RESERVED_BYTES))
        except OSError as error:
            text = f"no room for {_RESERVED_BYTES} bytes of counters: {error.strerror}"
            raise OSError(error.errno, text, str(directory)) from error


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

    def render(self, stats: Sequence[SchedulerStats | None]) -> bytes:
        """The text exposition; ``stats`` of each group of ranks, ``None`` for one that is not there."""
        registry = self._registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry) + scheduler_metrics(stats)

"""Counters of the grammar layer: per request and since start."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class GrammarStats:
    """What one request's grammar cost. Times in seconds."""

    kind: str | None = None
    backend: str | None = None
    compile_seconds: float = 0.0
    queue_seconds: float = 0.0
    """From arrival until the grammar was ready; 0 for a cache hit."""
    is_cache_hit: bool = False
    joined_compile: bool = False
    """Whether another request's compile of the same specification was shared."""
    size_bytes: int = 0
    unenforced: tuple[str, ...] = ()
    """JSON pointers of keywords that nothing enforces, of a lenient request."""


COUNTERS = (
    "grammar_requests_total",
    "grammar_compiles_total",
    "grammar_compile_seconds_total",
    "grammar_cache_hits_total",
    "grammar_disk_cache_hits_total",
    "grammar_cache_misses_total",
    "grammar_single_flight_joins_total",
    "grammar_invalid_total",
    "grammar_timeouts_total",
    "grammar_aborts_total",
    "grammar_compiles_cancelled_total",
    "grammar_compiles_displaced_total",
    "grammar_worker_restarts_total",
    "grammar_worker_crashes_total",
    "grammar_mask_rows_total",
    "grammar_mask_fill_seconds_total",
)


@dataclass
class GrammarMetrics:
    """Counters by Prometheus name without prefix. Written from several threads: single additions under the GIL."""

    counters: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COUNTERS, 0)))

    def add(self, name: str, amount: float = 1) -> None:
        if name not in self.counters:
            raise KeyError(name)
        self.counters[name] += amount  # type: ignore[assignment]

    def snapshot(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.counters.items()}

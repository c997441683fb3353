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


COUNTERS = {
    "grammar_requests_total": "Requests with a constraint.",
    "grammar_compiles_total": "Compiles that a process was given, second tries included.",
    "grammar_compile_seconds_total": "Seconds that the compiles took which succeeded.",
    "grammar_cache_hits_total": "Requests whose grammar was in memory.",
    "grammar_disk_cache_hits_total": "Of the misses, grammars that --grammar-disk-cache held.",
    "grammar_cache_misses_total": "Requests whose grammar was neither in memory nor being made.",
    "grammar_cache_evictions_total": "Grammars that left the memory cache to make room for others.",
    "grammar_single_flight_joins_total": "Requests that waited for a grammar which another request's miss was making.",
    "grammar_invalid_total": "Compiles that failed otherwise than by time: refused, too large, displaced, crashed.",
    "grammar_timeouts_total": "Compiles, or waits of a request for one, that took longer than --grammar-timeout.",
    "grammar_aborts_total": "Requests that were aborted while they waited for their grammar.",
    "grammar_compiles_cancelled_total": "Compiles that were ended because nobody waited for them any more.",
    "grammar_compiles_displaced_total": "Slow compiles that were ended because others waited for their place.",
    "grammar_worker_restarts_total": "Compile processes, or their parent, that were killed or died at work.",
    "grammar_worker_crashes_total": "Compile processes that died at work by themselves.",
    "grammar_mask_rows_total": "Vocabulary masks that were filled: one for each constrained token and draft.",
    "grammar_mask_fill_seconds_total": "Seconds that the scheduler spent filling vocabulary masks.",
}
"""What a counter counts, by its Prometheus name without prefix."""


@dataclass
class GrammarMetrics:
    """Counters by Prometheus name without prefix. Written from several threads: single additions under the GIL."""

    counters: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COUNTERS, 0)))
    cache_bytes: int = 0
    """Size of the grammars in the memory cache."""

    def add(self, name: str, amount: float = 1) -> None:
        if name not in self.counters:
            raise KeyError(name)
        self.counters[name] += amount  # type: ignore[assignment]

    def snapshot(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.counters.items()}

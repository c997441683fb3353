"""Configuration of the grammar layer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

JsonWhitespace = Literal["compact", "bounded", "any"]
UndeclaredProperties = Literal["closed", "open"]

MAX_WHITESPACE_CHARACTERS = 8
"""Most whitespace characters between two JSON tokens under ``bounded``."""


@dataclass(frozen=True, kw_only=True)
class GrammarConfig:
    backend: str = "auto"
    """``auto``, ``none``, or a name of :data:`constrained.engines.base.GRAMMAR_BACKEND_REGISTRY`."""
    timeout: float = 30.0
    """Seconds of wall time from a request's arrival until its grammar must be ready."""
    compile_workers: int = 2
    """Warm processes that wait for a grammar."""
    max_compile_workers: int = 8
    """Most compile processes at once: slow compiles move aside so that the warm ones stay free, up to this many."""
    displace_after_seconds: float = 2.0
    """How long a slow compile keeps its place, and a request waits for one, where every place is taken by such.

    On a busy machine a compile that has had little of a core keeps it longer."""
    compile_memory_bytes: int = 2 << 30
    """Most memory one compile may allocate."""
    compile_threads: int = 1
    """Threads of one xgrammar compile."""
    normal_priority_seconds: float = 0.3
    """CPU seconds after which a compile falls to the kernel's idle class, where it gets next to nothing while answers
    are written on every core. A compile of 20 ms in a warm process takes several times that in a fresh one that shares
    a core."""
    max_spec_bytes: int = 2_000_000
    """Longest specification, in bytes of UTF-8."""
    cache_bytes: int = 256 << 20
    """Bound of the compiled grammars kept in memory."""
    disk_cache: Path | None = None
    """Folder of compiled grammars that survive a restart; ``None``: no disk cache."""
    disk_cache_bytes: int = 512 << 20
    """Bound of that folder."""
    json_whitespace: JsonWhitespace = "bounded"
    """Whitespace between JSON tokens: none, at most 8 characters, or any amount."""
    json_number_digits: int = 20
    """Most digits of a number before the point, and again behind it, where the schema sets no bound; 0: any number."""
    json_undeclared_properties: UndeclaredProperties = "closed"
    """Whether objects that declare properties and do not say ``additionalProperties`` take other keys."""
    max_draft_tokens: int = 16
    """Most draft tokens of one request in a step: mask rows are allocated for them."""
    fill_threads: int | None = None
    """Threads that fill masks; ``None``: as many as there are cores, at most 8."""
    parallel_fill_rows: int = 16
    """Row count from which masks are filled in parallel threads."""
    walk_steps: int = 64
    """Random legal steps a worker tries before a grammar is admitted."""
    max_mask_seconds: float = 0.05
    """CPU seconds that one mask may take on average over those steps, through an engine that does not count its work
    (xgrammar, outlines); a slower grammar is refused."""
    plugins: tuple[str, ...] = ()
    """Modules that register further backends when imported; compile workers import them too."""

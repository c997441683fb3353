"""Configuration of the scheduler process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SchedulePolicy = Literal["lpm", "fcfs"]
Speculation = Literal["off", "ngram", "draft-model"]


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    endpoint: str
    """ZMQ address the scheduler binds, ``ipc://`` or loopback ``tcp://``."""
    max_running_requests: int = 64
    """Most choices that run at once."""
    max_queued_requests: int = 1024
    """Most requests that wait; one more is refused with 429."""
    max_batch_tokens: int = 512
    """Token budget of one step."""
    policy: SchedulePolicy = "lpm"
    """Longest prefix match, or first come first served."""
    prefix_cache: bool = True

    heartbeat_interval: float = 5.0
    """Seconds, at most, between two signs of life of a scheduler that is not inside a step."""
    overlap: bool = True
    """Launch a step before its predecessor's results are read, on devices that work while the CPU does not wait."""
    jump_forward: bool = True
    """Propose what a grammar forces as drafts."""
    speculative: Speculation = "off"
    """Propose continuations from the request's own tokens, or from a smaller model."""
    max_draft_tokens: int = 16
    """Most tokens a drafter may propose for one request in one step."""

    @property
    def effective_max_running_requests(self) -> int:
        """Every running request needs room for one token in a step."""
        return min(self.max_running_requests, self.max_batch_tokens)

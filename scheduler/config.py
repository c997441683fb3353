"""Configuration of the scheduler process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SchedulePolicy = Literal["lpm", "fcfs"]


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

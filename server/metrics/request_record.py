"""What is known of one HTTP request for its log line and its metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from starlette.types import Scope

from scheduler.messages import GrammarReport

_KEY = "scansion.record"


@dataclass(slots=True)
class RequestRecord:
    request_id: str
    """From ``X-Request-Id``, or made here; in the answer's header and in the log."""
    method: str
    path: str
    started: float = field(default_factory=time.perf_counter)
    status: int = 0
    """0 until a status line was sent."""
    error: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    first_token: float | None = None
    """``time.perf_counter`` at the first token."""
    is_disconnected: bool = False
    grammar: GrammarReport | None = None
    """How a constrained request came by its grammar."""

    @property
    def seconds_to_first_token(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.started


def attach_record(scope: Scope, record: RequestRecord) -> None:
    scope[_KEY] = record


def record_of(scope: Scope) -> RequestRecord:
    record: RequestRecord = scope[_KEY]
    return record

"""Read the kept bytes of one request: its tokens, when they came, how it ended."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import jsonschema  # type: ignore[import-untyped]

from bench.serve.client import Exchange, Failure
from bench.serve.schemas import Schema
from bench.serve.sse import Piece, read_events

CountSource = Literal["usage", "token_ids", "events"]

_TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "refusal", "text")


@dataclass
class Answer:
    """One answered request, or one that failed. Times are seconds after the request was sent."""

    arrivals: list[float] = field(default_factory=list)
    """When each event that carried tokens came."""
    arrival_token_counts: list[int] = field(default_factory=list)
    """Ids named by each such event: zeros where the server names none."""
    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    usage_completion_tokens: int | None = None
    seconds: float = 0.0
    """Until the last byte."""
    failure: Failure | None = None
    form: str | None = None
    is_valid: bool | None = None
    """Whether the text fits the job's schema; ``None`` when it has none."""

    @property
    def count_source(self) -> CountSource:
        """Where ``output_tokens`` comes from, best first."""
        if self.usage_completion_tokens is not None:
            return "usage"
        return "token_ids" if any(self.arrival_token_counts) else "events"

    @property
    def output_tokens(self) -> int:
        """Generated tokens; of a failed request those that came."""
        if self.usage_completion_tokens is not None:
            return self.usage_completion_tokens
        return sum(self.arrival_token_counts) or len(self.arrivals)

    @property
    def time_to_first_token(self) -> float | None:
        return self.arrivals[0] if self.arrivals else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between successive events that carried tokens."""
        return [later - earlier for earlier, later in pairwise(self.arrivals)]

    @property
    def time_per_output_token(self) -> float | None:
        """Mean seconds per token after the first event's; ``None`` when nothing followed it."""
        if len(self.arrivals) < 2:
            return None
        first = self.arrival_token_counts[0] if any(self.arrival_token_counts) else 1
        following = self.output_tokens - first
        if following < 1:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / following


def read_answer(exchange: Exchange) -> Answer:
    """Parse one exchange. What breaks the protocol becomes the answer's ``failure``."""
    answer = Answer(seconds=exchange.ended - exchange.started, failure=exchange.failure, form=exchange.job.form)
    try:
        is_done = _read_stream(answer, exchange.pieces, exchange.started)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        answer.failure = answer.failure or Failure("malformed", f"{type(error).__name__}: {error}")
    else:
        if answer.failure is None and not (is_done and answer.finish_reason):
            missing = "a finish reason" if is_done else "[DONE]"
            answer.failure = Failure("closed", f"the stream ended without {missing}")
        elif answer.failure is None and not answer.arrivals:
            answer.failure = Failure("no_tokens", "the stream ended well and brought no token")
    if exchange.job.schema is not None:
        answer.is_valid = answer.failure is None and fits_schema(answer.text, exchange.job.schema)
    return answer


def _read_stream(answer: Answer, pieces: Iterable[Piece], started: float) -> bool:
    """Fill ``answer``; returns whether the end was announced."""
    for event in read_events(pieces):
        if event.data == "[DONE]":
            return True
        payload = json.loads(event.data)
        if event.name == "error" or payload.get("error") is not None:
            answer.failure = answer.failure or Failure("error_event", event.data)
            continue
        if (usage := payload.get("usage")) is not None:
            _read_usage(answer, usage)
        for choice in payload.get("choices") or ():
            _read_choice(answer, choice, event.stamp - started)
    return False


def _read_usage(answer: Answer, usage: dict[str, Any]) -> None:
    if usage.get("completion_tokens") is not None:
        answer.usage_completion_tokens = int(usage["completion_tokens"])
    if usage.get("prompt_tokens") is not None:
        answer.prompt_tokens = int(usage["prompt_tokens"])
    details = usage.get("prompt_tokens_details") or {}
    if details.get("cached_tokens") is not None:
        answer.cached_tokens = int(details["cached_tokens"])


def _read_choice(answer: Answer, choice: dict[str, Any], seconds: float) -> None:
    delta = choice.get("delta") or {}
    answer.text += delta.get("content") or ""
    token_ids = choice.get("token_ids")
    has_text = any(delta.get(name) for name in _TEXT_FIELDS) or bool(delta.get("tool_calls"))
    if token_ids or has_text:
        answer.arrivals.append(seconds)
        answer.arrival_token_counts.append(len(token_ids or ()))
    if choice.get("finish_reason"):
        answer.finish_reason = choice["finish_reason"]


def fits_schema(text: str, schema: Schema) -> bool:
    """Whether ``text`` is JSON (RFC 8259: no ``NaN``) with distinct keys that ``schema`` (draft 2020-12) accepts."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_distinct)
    except (ValueError, RecursionError):
        return False
    return bool(_validator(json.dumps(schema)).is_valid(value))


@lru_cache(maxsize=1024)
def _validator(schema_text: str) -> Any:
    return jsonschema.Draft202012Validator(
        json.loads(schema_text), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a key occurs twice")
    return result

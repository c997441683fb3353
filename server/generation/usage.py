"""Token counts of an answer, in OpenAI's form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from scheduler.messages import Usage


def usage_body(prompt_lengths: Iterable[int], choices: Sequence[tuple[int, Usage]]) -> dict[str, Any]:
    """The ``usage`` object.

    Parameters
    ----------
    prompt_lengths
        Tokens of each prompt; a prompt counts once, however many choices it has.
    choices
        (prompt index, counts) of every choice that was generated. A prompt's cached tokens are those of the choice
        that found the fewest, since the others may have found what the first had just computed.
    """
    prompt_tokens = sum(prompt_lengths)
    completion_tokens = sum(usage.completion_tokens for _, usage in choices)
    cached: dict[int, int] = {}
    for prompt_index, usage in choices:
        cached[prompt_index] = min(cached.get(prompt_index, usage.cached_tokens), usage.cached_tokens)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(cached.values()), "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": sum(usage.reasoning_tokens for _, usage in choices),
            "accepted_prediction_tokens": sum(usage.accepted_prediction_tokens for _, usage in choices),
            "rejected_prediction_tokens": sum(usage.rejected_prediction_tokens for _, usage in choices),
            "audio_tokens": 0,
        },
    }


def usage_so_far(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """The ``usage`` of a chunk in the middle of a stream (``continuous_usage_stats``)."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }

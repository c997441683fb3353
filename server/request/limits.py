"""Whether a prompt and its answer fit, decided before anything is queued."""

from __future__ import annotations

from scheduler.messages import SchedulerReady
from server.errors import BadRequestError

_CODE = "context_length_exceeded"


def longest_sequence(ready: SchedulerReady) -> int:
    """Most tokens, prompt and output together, that can ever run."""
    return min(ready.context_length, ready.kv_cache_tokens)


def refuse_hopeless_text(fewest_tokens: int, ready: SchedulerReady, *, param: str) -> None:
    """Refuse a text too long to fit whatever its tokens are, before the time to encode it is spent."""
    limit = longest_sequence(ready)
    if fewest_tokens > limit:
        raise BadRequestError(
            f"The prompt has more than {limit} tokens, the most this server can hold. Shorten it.",
            param=param,
            code=_CODE,
        )


def resolve_max_tokens(
    num_prompt_tokens: int, requested: int | None, ready: SchedulerReady, *, param: str, prompt_param: str
) -> int:
    """Tokens each choice may have: what was asked for, or all the room there is.

    Raises
    ------
    BadRequestError
        The prompt alone, or together with the tokens asked for, does not fit.
    """
    limit = longest_sequence(ready)
    room = limit - num_prompt_tokens
    if room < (0 if requested == 0 else 1):
        raise BadRequestError(
            f"The prompt has {num_prompt_tokens} tokens; with at least one token of output the most this server can "
            f"hold is {limit}. Shorten the prompt.",
            param=prompt_param,
            code=_CODE,
        )
    if requested is None:
        return room
    if requested > room:
        raise BadRequestError(
            f"The prompt has {num_prompt_tokens} tokens and '{param}' asks for {requested} more; together at most "
            f"{limit} fit. Lower '{param}' to {room} or shorten the prompt.",
            param=param,
            code=_CODE,
        )
    return requested

"""The one check of sampling parameters: ranges, types and contradictions, each error naming its field and its cure.

Free of torch. The HTTP process calls it to answer with a 400; the scheduler calls it again, as it trusts no client.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from sampling.params import SamplingParams

MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_BAD_WORDS = 256
MAX_BAD_WORD_TOKENS = 64
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class SamplingParamsError(ValueError):
    """A parameter that cannot be served; ``param`` is the request field to change."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def validate_sampling_params(params: SamplingParams, *, vocab_size: int) -> None:
    """Check every field of ``params``.

    Parameters
    ----------
    params
        As built from a request or decoded from a message.
    vocab_size
        Width of the model's logits: token ids are below it.

    Raises
    ------
    SamplingParamsError
        The first field that is out of range, of the wrong type, or contradicts another.
    """
    _integer("n", params.n, 1, MAX_CHOICES)
    _integer("max_tokens", params.max_tokens, 0 if params.prompt_logprobs is not None else 1, INT64_MAX)
    _integer("min_tokens", params.min_tokens, 0, INT64_MAX)
    if params.min_tokens > params.max_tokens:
        raise SamplingParamsError(
            f"'min_tokens' is {params.min_tokens}, more than 'max_tokens', {params.max_tokens}: lower the one or raise "
            "the other.",
            "min_tokens",
        )
    _check_filters(params)
    _number("repetition_penalty", params.repetition_penalty, 0.0, None, exclusive_low=True)
    _boolean("penalize_prompt", params.penalize_prompt)
    _number("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    _number("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _check_logit_bias(params, vocab_size)
    _check_token_lists(params, vocab_size)
    _check_stops(params, vocab_size)
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        if value is not None:
            _integer(name, value, 0, MAX_TOP_LOGPROBS)


def _check_filters(params: SamplingParams) -> None:
    _number("temperature", params.temperature, 0.0, 2.0)
    _number("top_p", params.top_p, 0.0, 1.0, exclusive_low=True)
    _number("min_p", params.min_p, 0.0, 1.0)
    _integer("top_k", params.top_k, -1, INT64_MAX)
    if params.top_k == 0:
        raise SamplingParamsError("'top_k' is 0: give -1 to keep every token, or at least 1.", "top_k")
    if params.seed is not None:
        _integer("seed", params.seed, INT64_MIN, INT64_MAX)


def _check_logit_bias(params: SamplingParams, vocab_size: int) -> None:
    if not isinstance(params.logit_bias, dict):
        raise SamplingParamsError("'logit_bias' must be an object from token ids to numbers.", "logit_bias")
    _at_most("logit_bias", len(params.logit_bias), MAX_LOGIT_BIAS_ENTRIES, "entries")
    _token_ids("logit_bias", params.logit_bias, vocab_size)
    for token_id, value in params.logit_bias.items():
        _number("logit_bias", value, -100.0, 100.0, label=f"'logit_bias' of token {token_id}")


def _check_token_lists(params: SamplingParams, vocab_size: int) -> None:
    if params.allowed_token_ids is not None:
        if not params.allowed_token_ids:
            raise SamplingParamsError(
                "'allowed_token_ids' is empty, so that no token could be drawn: leave it out, or list some.",
                "allowed_token_ids",
            )
        _token_ids("allowed_token_ids", params.allowed_token_ids, vocab_size)
    _at_most("bad_words", len(params.bad_words_token_ids), MAX_BAD_WORDS, "token sequences")
    for word in params.bad_words_token_ids:
        if not word:
            raise SamplingParamsError("'bad_words' holds an empty word: leave it out.", "bad_words")
        _at_most("bad_words", len(word), MAX_BAD_WORD_TOKENS, "tokens in one word")
        _token_ids("bad_words", word, vocab_size)
    if params.allowed_token_ids is not None:
        single = {word[0] for word in params.bad_words_token_ids if len(word) == 1}
        if single.issuperset(params.allowed_token_ids):
            raise SamplingParamsError(
                "'bad_words' forbids every token of 'allowed_token_ids': allow some other token.", "bad_words"
            )


def _check_stops(params: SamplingParams, vocab_size: int) -> None:
    for stop in params.stop:
        if not isinstance(stop, bytes) or not stop:
            raise SamplingParamsError("'stop' holds an empty string: leave it out.", "stop")
    _at_most("stop_token_ids", len(params.stop_token_ids), MAX_STOP_TOKEN_IDS, "ids")
    _token_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    _boolean("include_stop_str_in_output", params.include_stop_str_in_output)
    _boolean("ignore_eos", params.ignore_eos)


def _integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SamplingParamsError(f"'{name}' must be an integer, not {_described(value)}.", name)
    if value < low:
        raise SamplingParamsError(f"'{name}' is {value}: it must be at least {low}.", name)
    if value > high:
        raise SamplingParamsError(f"'{name}' is {value}: it must be at most {high}.", name)


def _number(
    name: str,
    value: object,
    low: float,
    high: float | None,
    *,
    exclusive_low: bool = False,
    label: str | None = None,
) -> None:
    label = label or f"'{name}'"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SamplingParamsError(f"{label} must be a number, not {_described(value)}.", name)
    if not math.isfinite(value):
        raise SamplingParamsError(f"{label} must be a finite number, not {value}.", name)
    if exclusive_low and value <= low:
        raise SamplingParamsError(f"{label} is {value}: it must be greater than {low:g}.", name)
    if value < low:
        raise SamplingParamsError(f"{label} is {value}: it must be at least {low:g}.", name)
    if high is not None and value > high:
        raise SamplingParamsError(f"{label} is {value}: it must be at most {high:g}.", name)


def _boolean(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise SamplingParamsError(f"'{name}' must be true or false, not {_described(value)}.", name)


def _token_ids(name: str, token_ids: Iterable[object], vocab_size: int) -> None:
    for token_id in token_ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise SamplingParamsError(f"'{name}' must hold token ids, not {_described(token_id)}.", name)
        if not 0 <= token_id < vocab_size:
            raise SamplingParamsError(
                f"'{name}' holds token id {token_id}: this model's ids are 0 to {vocab_size - 1}.", name
            )


def _at_most(name: str, number: int, limit: int, what: str) -> None:
    if number > limit:
        raise SamplingParamsError(f"'{name}' has {number} {what}: the most is {limit}.", name)


def _described(value: object) -> str:
    return {bool: "a boolean", str: "a string", type(None): "null", list: "a list", dict: "an object"}.get(
        type(value), repr(value)
    )

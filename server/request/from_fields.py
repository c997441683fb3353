"""What the fields that chat and text completions share ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sampling.params import SamplingParams
from scheduler.messages import SchedulerReady
from server.config import HttpConfig
from server.context import ServerContext
from server.errors import BadRequestError
from server.request.constraint_fields import constraint_field, grammar_spec
from server.request.description import AnswerRequest, Constraint, Conversation, Prompt
from server.request.fields import SamplingFields


def answer_request(
    body: SamplingFields,
    context: ServerContext,
    ready: SchedulerReady,
    *,
    prompt: Conversation | Sequence[Prompt],
    n: int,
    logprobs: int | None,
    names: dict[str, str],
    prompt_logprobs: int | None = None,
    **more: Any,
) -> AnswerRequest:
    """Describe ``body``; ``more`` are the fields of :class:`AnswerRequest` that only one dialect has.

    Raises
    ------
    BadRequestError
        Names the field that is out of range or contradicts another.
    """
    spec = grammar_spec(body, max_bytes=context.config.max_constraint_bytes)
    sampling = _sampling_params(body, context, ready.vocab_size, n, logprobs, prompt_logprobs)
    if body.min_tokens is None:
        names = {**names, "min_tokens": "min_new_tokens"}
    return AnswerRequest(
        prompt=prompt,
        sampling=sampling,
        constraint=Constraint(spec=spec, field=constraint_field(body)),
        is_lenient=body.lenient,
        grammar_backend=body.grammar_backend,
        skip_special_tokens=body.skip_special_tokens,
        priority=body.priority,
        may_draft=body.speculative,
        is_streamed=body.stream,
        field_names=names,
        **more,
    )


def refuse_stream_options(body: SamplingFields) -> None:
    if body.stream_options is not None and not body.stream:
        raise BadRequestError("'stream_options' needs 'stream' to be true.", param="stream_options")


def refuse_more_logprobs(num: int | None, context: ServerContext, *, param: str) -> None:
    most = context.config.max_top_logprobs
    if num is not None and num > most:
        raise BadRequestError(f"'{param}' is {num}; the range is 0 to {most}.", param=param)


def _sampling_params(
    fields: SamplingFields,
    context: ServerContext,
    vocab_size: int,
    n: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """Resolve the fields against the model's generation defaults; ``max_tokens`` is settled later."""
    config, defaults = context.config, context.assets.generation_defaults
    if n > config.max_choices:
        raise BadRequestError(f"'n' is {n}; the largest allowed is {config.max_choices}.", param="n")
    if fields.min_tokens is not None and fields.min_new_tokens is not None:
        raise BadRequestError("Give 'min_tokens' or 'min_new_tokens', not both.", param="min_new_tokens")

    def resolved(name: str, neutral: float) -> float:
        value = getattr(fields, name)
        return float(value if value is not None else defaults.get(name, neutral))

    temperature, top_p = resolved("temperature", 1.0), resolved("top_p", 1.0)
    if top_p == 0.0:  # keeps the likeliest token alone
        temperature, top_p = 0.0, 1.0
    return SamplingParams(
        max_tokens=0,
        n=n,
        min_tokens=fields.min_tokens or fields.min_new_tokens or 0,
        temperature=temperature,
        top_p=top_p,
        top_k=_top_k(fields.top_k, defaults),
        min_p=resolved("min_p", 0.0),
        seed=fields.seed,
        repetition_penalty=resolved("repetition_penalty", 1.0),
        penalize_prompt=fields.penalize_prompt,
        frequency_penalty=float(fields.frequency_penalty or 0.0),
        presence_penalty=float(fields.presence_penalty or 0.0),
        logit_bias=_logit_bias(fields.logit_bias or {}, vocab_size, config),
        allowed_token_ids=_allowed(fields.allowed_token_ids, vocab_size),
        bad_words_token_ids=_bad_words(fields.bad_words or [], context.tokenizer.encode_plain, config),
        stop=_stops(fields.stop, config),
        stop_token_ids=_token_ids(fields.stop_token_ids or [], "stop_token_ids", vocab_size),
        include_stop_str_in_output=fields.include_stop_str_in_output,
        ignore_eos=fields.ignore_eos,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _top_k(value: int | None, defaults: dict[str, Any]) -> int:
    if value is None:
        value = int(defaults.get("top_k", -1))
    return -1 if value == 0 else value  # transformers writes "keep every token" as 0


def _allowed(token_ids: list[int] | None, vocab_size: int) -> tuple[int, ...] | None:
    if token_ids is None:
        return None
    if not token_ids:
        raise BadRequestError("'allowed_token_ids' is empty: no token could be drawn.", param="allowed_token_ids")
    return tuple(dict.fromkeys(_token_ids(token_ids, "allowed_token_ids", vocab_size)))


def _token_ids(token_ids: list[int], name: str, vocab_size: int) -> tuple[int, ...]:
    for index, token_id in enumerate(token_ids):
        if token_id >= vocab_size:
            raise BadRequestError(
                f"'{name}[{index}]' is {token_id}; the model's token ids end at {vocab_size - 1}.",
                param=f"{name}[{index}]",
                code="invalid_token_id",
            )
    return tuple(token_ids)


def _stops(stop: str | list[str] | None, config: HttpConfig) -> tuple[bytes, ...]:
    strings = [stop] if isinstance(stop, str) else stop or []
    if len(strings) > config.max_stop_strings:
        raise BadRequestError(
            f"'stop' has {len(strings)} strings; the most allowed are {config.max_stop_strings}.", param="stop"
        )
    for index, text in enumerate(strings):
        param = "stop" if isinstance(stop, str) else f"stop[{index}]"
        if not text:
            raise BadRequestError(f"'{param}' is empty; a stop string needs at least one character.", param=param)
        if len(text) > config.max_stop_length:
            raise BadRequestError(f"'{param}' is longer than {config.max_stop_length} characters.", param=param)
    return tuple(text.encode() for text in dict.fromkeys(strings))


def _logit_bias(biases: dict[str, float], vocab_size: int, config: HttpConfig) -> dict[int, float]:
    if len(biases) > config.max_logit_bias_entries:
        raise BadRequestError(
            f"'logit_bias' has {len(biases)} entries; the most allowed are {config.max_logit_bias_entries}.",
            param="logit_bias",
        )
    by_id: dict[int, float] = {}
    for key, bias in biases.items():
        # One spelling for each id: "7" and "07" in one object would be two biases of one token.
        is_id = key.isascii() and key.isdigit() and len(key) < 11 and str(int(key)) == key
        if not is_id or int(key) >= vocab_size:
            raise BadRequestError(
                f"'logit_bias' has the key {key[:40]!r}; keys are token ids from 0 to {vocab_size - 1}.",
                param="logit_bias",
                code="invalid_token_id",
            )
        if not -100 <= bias <= 100:
            raise BadRequestError(
                f"'logit_bias' has {bias} for token {key}; the range is -100 to 100.", param="logit_bias"
            )
        by_id[int(key)] = float(bias)
    return by_id


def _bad_words(words: list[str], encode: Callable[[str], list[int]], config: HttpConfig) -> tuple[tuple[int, ...], ...]:
    if len(words) > config.max_bad_words:
        raise BadRequestError(
            f"'bad_words' has {len(words)} entries; the most allowed are {config.max_bad_words}.", param="bad_words"
        )
    sequences: dict[tuple[int, ...], None] = {}
    for index, word in enumerate(words):
        if not word or len(word) > config.max_stop_length:
            raise BadRequestError(
                f"'bad_words[{index}]' must have 1 to {config.max_stop_length} characters.",
                param=f"bad_words[{index}]",
            )
        # A word inside a sentence is spelled with its leading blank by most tokenizers.
        for spelling in (word, " " + word.lstrip(" ")):
            sequences[tuple(encode(spelling))] = None
    return tuple(sequences)

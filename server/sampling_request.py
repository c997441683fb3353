"""Sampling, stopping and output fields that chat and text completions share, and what the scheduler gets from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from sampling.params import SamplingParams
from server.config import HttpConfig
from server.errors import BadRequestError
from server.validation import List, RequestModel

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class StreamOptions(RequestModel):
    include_usage: bool = False
    """A last chunk without choices carries the usage."""
    continuous_usage_stats: bool = False
    """Every chunk carries the usage so far."""
    include_obfuscation: bool = False
    """Ignored: events are not padded."""


class JsonSchemaFormat(RequestModel):
    """``response_format.json_schema``."""

    name: str | None = None
    """1 to 64 of the characters a-z, A-Z, 0-9, _ and -."""
    description: str | None = None
    """For readers; not shown to the model."""
    schema_: Any = Field(default=None, alias="schema")  # server.constraints checks its type
    """The schema that the answer fits."""
    strict: bool | None = None
    """True: objects that declare properties and say nothing of others are closed, as at OpenAI."""


class ResponseFormat(RequestModel):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    """What the answer is: free text, any JSON object, JSON that fits a schema, or a structural tag."""
    json_schema: JsonSchemaFormat | None = None
    """With type json_schema."""
    schema_: Any = Field(default=None, alias="schema")
    """With type json_object, as llama.cpp spells a schema."""
    structures: Any = None
    """With type structural_tag: begins, schemas and ends; `triggers` beside it."""
    triggers: Any = None
    """With type structural_tag: texts that begin a structure."""
    format: Any = None
    """With type structural_tag: the newer form, in place of `structures` and `triggers`."""


class StructuredOutputs(RequestModel):
    """vLLM's spelling of a constraint: exactly one of the fields."""

    json_: Any = Field(default=None, alias="json")
    """A schema, or its JSON text."""
    regex: str | None = None
    """A pattern that the whole answer matches."""
    choice: List[str] | None = None
    """The answer is one of these texts."""
    grammar: str | None = None
    """A grammar that the whole answer matches."""
    json_object: bool | None = None
    """True: the answer is any JSON object."""
    structural_tag: Any = None
    """As `response_format` has it, or its JSON text."""


class SamplingFields(RequestModel):
    """Fields of both completions endpoints."""

    fields_elsewhere: ClassVar = {
        "extra_body": "It is an argument of OpenAI's Python client: in the body its fields stand beside 'model'."
    }

    model: str | None = None
    """Left out: the served model."""
    stream: bool = False
    """Answer in server-sent events."""
    stream_options: StreamOptions | None = None
    """Only with `stream`."""
    n: int = Field(default=1, ge=1)
    """Choices of a prompt."""
    seed: int | None = Field(default=None, ge=INT64_MIN, le=INT64_MAX)
    """The same seed and request give the same tokens. Unset: a random one."""
    max_tokens: int | None = Field(default=None, ge=0)
    """Most tokens of a choice. Unset: as many as fit."""
    min_tokens: int | None = Field(default=None, ge=0)
    """Tokens before the answer may end by itself."""
    min_new_tokens: int | None = Field(default=None, ge=0)
    """The same as min_tokens."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Divides the logits; 0 is greedy. Unset: the model's, or 1."""
    top_p: float | None = Field(default=None, ge=0, le=1)
    """Keeps the likeliest tokens that together have this share of the probability; 0 keeps the likeliest. Unset: the
    model's, or 1."""
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    """Keeps this many of the likeliest tokens; -1 keeps all. Unset: the model's, or -1."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Keeps tokens with at least this share of the likeliest one's probability. Unset: the model's, or 0."""
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Subtracted from a token's logit for each time it stands in the output."""
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Subtracted from a token's logit if it stands in the output."""
    repetition_penalty: float | None = Field(default=None, gt=0)
    """Positive logits of tokens in the output are divided by it, negative ones multiplied. Unset: the model's, or 1."""
    penalize_prompt: bool = False
    """Whether `repetition_penalty` counts the prompt, too."""
    logit_bias: dict[str, float] | None = None
    """Token id to a number from -100 to 100 that is added to its logit."""
    allowed_token_ids: List[TokenId] | None = None
    """Nothing but these is drawn."""
    bad_words: List[str] | None = None
    """Texts that are never written."""
    stop: str | List[str] | None = None
    """The answer ends before the first of these texts."""
    stop_token_ids: List[TokenId] | None = None
    """The answer ends with one of these tokens."""
    include_stop_str_in_output: bool = False
    """Whether the answer keeps the stop string that ended it."""
    ignore_eos: bool = False
    """Whether the model's end tokens do not end the answer; without effect where a constraint holds."""
    skip_special_tokens: bool = True
    """False: the text shows special tokens."""
    return_token_ids: bool = False
    """Whether choices have `token_ids`, and the answer `prompt_token_ids`."""
    speculative: bool = True
    """False: every token takes a step of its own."""
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)
    """Higher runs earlier."""

    response_format: ResponseFormat | None = None
    """The form of the answer. A request has at most one constraint."""
    structured_outputs: StructuredOutputs | None = None
    """A constraint in the words of vLLM."""
    json_schema: Any = None
    """A constraint: a schema that the answer fits."""
    regex: str | None = None
    """A constraint: a pattern that the whole answer matches."""
    ebnf: str | None = None
    """A constraint: a grammar that the whole answer matches."""
    choice: List[str] | None = None
    """A constraint: the answer is one of these texts."""
    grammar_backend: str | None = Field(default=None, max_length=64)
    """The engine that enforces the constraint. Unset: the server's."""
    lenient: bool = False
    """Whether what no engine can enforce of a schema is listed in the answer instead of refused."""


def sampling_params(
    fields: SamplingFields,
    *,
    config: HttpConfig,
    defaults: dict[str, Any],
    vocab_size: int,
    n: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
    encode: Callable[[str], list[int]],
) -> SamplingParams:
    """Resolve a request's fields against the model's generation defaults; ``max_tokens`` is left for later.

    Parameters
    ----------
    defaults
        From the model's ``generation_config``; a field of the request wins.
    encode
        Text to token ids, for ``bad_words``.

    Raises
    ------
    BadRequestError
        Names the field that is out of range or contradicts another.
    """
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
        bad_words_token_ids=_bad_words(fields.bad_words or [], encode, config),
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

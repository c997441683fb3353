"""Sampling, stopping, constraint and output fields that chat and text completions share."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

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
    schema_: Any = Field(default=None, alias="schema")  # server.request.constraint_fields checks its type
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

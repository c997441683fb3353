"""Which requests are refused before they are queued. Pure checks; the answer is an error for a person, or ``None``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sampling.validation import SamplingParamsError, validate_sampling_params
from scheduler.messages import ErrorInfo, GenerateRequest

if TYPE_CHECKING:
    from constrained.errors import GrammarError

INVALID_CODES = {
    "json_schema": "invalid_schema",
    "regex": "invalid_regex",
    "ebnf": "invalid_grammar",
    "structural_tag": "invalid_structural_tag",
}
"""What programs tell a constraint by that is wrong or asks for what nothing enforces."""

MAX_STOP_BYTES = 64 * 1024
"""Bytes of all stop strings of a request: their automaton is built on the scheduler's loop."""


@dataclass(frozen=True, slots=True)
class ServingLimits:
    context_length: int
    kv_cache_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]

    @property
    def max_total_tokens(self) -> int:
        """Most tokens one choice may ever have."""
        return min(self.context_length, self.kv_cache_tokens)


def check_request(message: GenerateRequest, limits: ServingLimits, *, serves_grammars: bool) -> ErrorInfo | None:
    return (
        _check_prompt(message, limits)
        or _check_sampling(message, limits)
        or _check_grammar(message, limits, serves_grammars)
    )


def queue_is_full(max_queued_requests: int) -> ErrorInfo:
    return ErrorInfo(
        status=429,
        type="rate_limit_error",
        code="queue_full",
        message=f"The server is overloaded: {max_queued_requests} requests are waiting already. Try again shortly.",
    )


def grammar_failed(message: GenerateRequest, error: GrammarError) -> ErrorInfo:
    """The client's fault names the client's field; the server's fault does not."""
    if error.status < 500:
        code = error.code or _code_of_kind(message)
        # A pointer may begin with the field that one part of a composed constraint came from.
        origin = (error.pointer or "").partition("/")[0]
        return _invalid(str(error), error.field or origin or message.grammar_field, code)
    text = f"The grammar could not be compiled: {error}."
    return ErrorInfo(status=error.status, type="server_error", code=error.code, message=text)


def _code_of_kind(message: GenerateRequest) -> str | None:
    if message.grammar is None:
        return None
    # The structural tag around the calls of tools is the server's; what a client wrote is the tools' schemas.
    return INVALID_CODES["json_schema" if message.grammar_field.startswith("tools") else message.grammar.kind]


def _check_prompt(message: GenerateRequest, limits: ServingLimits) -> ErrorInfo | None:
    prompt = message.prompt_token_ids
    if not prompt:
        return _invalid("The prompt has no tokens.", "prompt")
    if min(prompt) < 0 or max(prompt) >= limits.vocab_size:
        return _invalid(f"The prompt has token ids outside 0 to {limits.vocab_size - 1}.", "prompt")
    # One token at least is generated, unless the prompt is only scored.
    needed = len(prompt) + (1 if message.sampling.max_tokens else 0)
    if needed > limits.context_length:
        return _invalid(
            f"The prompt has {len(prompt)} tokens, but this model's context is {limits.context_length} tokens, "
            "the answer included. Shorten the prompt.",
            "prompt",
            code="context_length_exceeded",
        )
    if needed > limits.kv_cache_tokens:
        return _invalid(
            f"The prompt has {len(prompt)} tokens, but the server's KV cache holds {limits.kv_cache_tokens}, "
            "the answer included. Shorten the prompt, or give the server more (--kv-cache-tokens).",
            "prompt",
            code="context_length_exceeded",
        )
    return None


def _check_sampling(message: GenerateRequest, limits: ServingLimits) -> ErrorInfo | None:
    sampling = message.sampling
    try:
        validate_sampling_params(sampling, vocab_size=limits.vocab_size)
    except SamplingParamsError as error:
        return _invalid(str(error), error.param)
    if sum(map(len, sampling.stop)) > MAX_STOP_BYTES:
        return _invalid(f"The stop strings have more than {MAX_STOP_BYTES} bytes together.", "stop")
    return None


def _check_grammar(message: GenerateRequest, limits: ServingLimits, serves_grammars: bool) -> ErrorInfo | None:
    reasoning = message.reasoning
    if reasoning is not None and not all(0 <= i < limits.vocab_size for i in reasoning.think_end_ids or (-1,)):
        return _invalid("A request that thinks needs an end-of-thinking marker of the model's tokens.", None)
    if reasoning is not None and reasoning.budget is not None and not serves_grammars:
        text = "A thinking budget needs the grammar layer (--grammar-backend none)."
        return _invalid(text, "thinking_budget", code="unsupported")
    if message.grammar is not None and not serves_grammars:
        text = "Constrained output is not enabled on this server (--grammar-backend none)."
        return _invalid(text, message.grammar_field, code="unsupported")
    return None


def _invalid(message: str, param: str | None, code: str | None = "invalid_value") -> ErrorInfo:
    return ErrorInfo(status=400, message=message, param=param, code=code)

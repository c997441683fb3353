"""What a request asks of the sampler. Free of torch: shared by the HTTP process and the scheduler."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling and stopping parameters of one request, already resolved (no ``None`` that means "the default").

    The HTTP process builds it from a request body and the model's generation defaults; the scheduler trusts only
    what :func:`sampling.validation.validate_sampling_params` accepted.
    """

    max_tokens: int
    """Most tokens to generate for each choice, at least 1 (0 is allowed with ``prompt_logprobs``: score only)."""
    n: int = 1
    min_tokens: int = 0
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = -1
    """-1 keeps every token."""
    min_p: float = 0.0
    seed: int | None = None
    """Any int64. ``None``: the scheduler draws one at admission."""

    repetition_penalty: float = 1.0
    penalize_prompt: bool = False
    """Whether the repetition penalty counts prompt tokens too."""
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()

    stop: tuple[bytes, ...] = ()
    """Stop strings as UTF-8 bytes, matched over token bytes."""
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False

    logprobs: int | None = None
    """``None``: none. 0 to 20: the drawn token's, and that many most likely tokens'."""
    prompt_logprobs: int | None = None
    """As ``logprobs``, for the prompt tokens (completions' ``echo``)."""

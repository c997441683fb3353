"""Body of a text completions request."""

from __future__ import annotations

from pydantic import Field

from server.sampling_request import SamplingFields, TokenId


class CompletionRequest(SamplingFields):
    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    echo: bool = False
    best_of: int | None = Field(default=None, ge=1)
    logprobs: int | None = Field(default=None, ge=0)
    add_special_tokens: bool = Field(default=True, description="Whether a text prompt begins with the BOS token.")

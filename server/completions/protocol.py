"""Body of a text completions request."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from server.sampling_request import SamplingFields, TokenId
from server.validation import List


class CompletionRequest(SamplingFields):
    fields_elsewhere: ClassVar = {"messages": "Give 'prompt', or send the messages to /v1/chat/completions."}

    prompt: str | List[str] | List[TokenId] | List[List[TokenId]]
    echo: bool = False
    best_of: int | None = Field(default=None, ge=1)
    logprobs: int | None = Field(default=None, ge=0)
    add_special_tokens: bool = Field(default=True, description="Whether a text prompt begins with the BOS token.")

"""Body of a text completions request."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from server.request.fields import SamplingFields, TokenId
from server.validation import List


class CompletionRequest(SamplingFields):
    fields_elsewhere: ClassVar = {
        **SamplingFields.fields_elsewhere,
        "messages": "Give 'prompt', or send the messages to /v1/chat/completions.",
        "tools": "Only /v1/chat/completions has them.",
    }

    prompt: str | List[str] | List[TokenId] | List[List[TokenId]]
    """A text, token ids, or a list of either."""
    echo: bool = False
    """Whether the prompt stands before the answer."""
    best_of: int | None = Field(default=None, ge=1)
    """Generates that many choices of a prompt and shows the `n` likeliest."""
    logprobs: int | None = Field(default=None, ge=0)
    """Each token comes with its log-probability, and those of this many likeliest tokens."""
    add_special_tokens: bool = True
    """Whether a text prompt begins with the BOS token."""

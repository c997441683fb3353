"""Body of a chat completions request."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from server.sampling_request import SamplingFields
from server.validation import List, RequestModel


class ContentPart(RequestModel):
    """One part of a message. Only text is served; :mod:`server.chat.messages` refuses the others by name."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    input_audio: Any = None
    video_url: Any = None
    file: Any = None
    prompt_cache_breakpoint: Any = None


class FunctionCall(RequestModel):
    name: str
    arguments: str


class ToolCall(RequestModel):
    """A call in the history."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(RequestModel):
    role: str
    content: str | List[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: List[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    audio: Any = None
    function_call: Any = None
    annotations: Any = None


class PredictionPart(RequestModel):
    type: Literal["text"]
    text: str


class Prediction(RequestModel):
    """OpenAI's predicted output."""

    type: Literal["content"]
    content: str | List[PredictionPart]


class ChatCompletionRequest(SamplingFields):
    messages: List[ChatMessage] = Field(min_length=1, max_length=16384)
    max_completion_tokens: int | None = Field(default=None, ge=1, description="Wins over nothing: give one of both.")
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0)
    prediction: Prediction | None = None
    modalities: List[Literal["text"]] | None = None
    tools: List[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

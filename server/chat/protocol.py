"""Body of a chat completions request."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from server.sampling_request import SamplingFields
from server.tools.definitions import FunctionDefinition, Tool
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


class CustomCall(RequestModel):
    name: str
    input: str


class ToolCall(RequestModel):
    """A call in the history."""

    id: str
    type: Literal["function", "custom"] = "function"
    function: FunctionCall | None = None
    custom: CustomCall | None = None
    index: int | None = Field(default=None, description="As streamed; ignored.")


class ChatMessage(RequestModel):
    role: str
    content: str | List[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: List[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    audio: Any = None
    function_call: FunctionCall | None = None
    annotations: Any = None


class PredictionPart(RequestModel):
    type: Literal["text"]
    text: str


class Prediction(RequestModel):
    """OpenAI's predicted output."""

    type: Literal["content"]
    content: str | List[PredictionPart]


class ChatCompletionRequest(SamplingFields):
    fields_elsewhere: ClassVar = {"prompt": "Give 'messages', or send the prompt to /v1/completions."}

    messages: List[ChatMessage] = Field(min_length=1, max_length=16384)
    max_completion_tokens: int | None = Field(default=None, ge=1, description="Wins over nothing: give one of both.")
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0)
    prediction: Prediction | None = None
    modalities: List[Literal["text"]] | None = None
    tools: List[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: List[FunctionDefinition] | None = None
    function_call: str | dict[str, Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    separate_reasoning: bool = True
    include_reasoning: bool = True
    stop_in_reasoning: bool = False
    thinking_budget: int | None = Field(default=None, ge=0)
    thinking_token_budget: int | None = Field(default=None, ge=0, description="The same as thinking_budget.")
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

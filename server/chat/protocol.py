"""Body of a chat completions request."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from server.request.fields import SamplingFields
from server.tools.definitions import FunctionDefinition, Tool
from server.validation import List, RequestModel


class ContentPart(RequestModel):
    """One part of a message. Only text is served; the others are refused by name."""

    type: str
    """`text`, or `refusal` in an earlier answer; nothing else is served."""
    text: str | None = None
    """With type text."""
    refusal: str | None = None
    """With type refusal."""
    image_url: Any = None
    """Refused."""
    input_audio: Any = None
    """Refused."""
    video_url: Any = None
    """Refused."""
    file: Any = None
    """Refused."""
    prompt_cache_breakpoint: Any = None
    """Ignored: prefixes are matched by their tokens."""
    cache_control: Any = None
    """Ignored: prefixes are matched by their tokens."""


class FunctionCall(RequestModel):
    name: str
    """The function."""
    arguments: str
    """Its arguments as JSON text."""
    parsed_arguments: Any = None
    """Ignored: OpenAI's client adds what it parsed of `arguments`."""


class CustomCall(RequestModel):
    name: str
    """The tool."""
    input: str
    """Its input."""


class ToolCall(RequestModel):
    """A call in the history."""

    id: str
    """As the answer had it; a `tool` message refers to it."""
    type: Literal["function", "custom"] = "function"
    """Which of the two below is given."""
    function: FunctionCall | None = None
    """With type function."""
    custom: CustomCall | None = None
    """With type custom."""
    index: int | None = None
    """Ignored: part of a streamed answer."""


class ChatMessage(RequestModel):
    role: str
    """system, developer, user, assistant, tool or function."""
    content: str | List[ContentPart] | None = None
    """A text, or text parts that are joined with a line break."""
    name: str | None = None
    """Of the speaker, or of the function that a `function` message answers for."""
    refusal: str | None = None
    """Of an earlier answer."""
    tool_calls: List[ToolCall] | None = None
    """Of an earlier answer."""
    tool_call_id: str | None = None
    """In a `tool` message: the call that it answers."""
    reasoning_content: str | None = None
    """Thinking of an earlier answer."""
    reasoning: str | None = None
    """The same as `reasoning_content`, as other servers spell it."""
    reasoning_details: Any = None
    """Ignored: thinking in the form of another service."""
    audio: Any = None
    """Refused."""
    function_call: FunctionCall | None = None
    """Of an earlier answer to `functions`."""
    annotations: Any = None
    """Ignored: part of an earlier answer."""
    parsed: Any = None
    """Ignored: OpenAI's client adds what it parsed of `content`."""
    cache_control: Any = None
    """Ignored: prefixes are matched by their tokens."""


class PredictionPart(RequestModel):
    type: Literal["text"]
    """Always text."""
    text: str
    """A part of the prediction."""


class Prediction(RequestModel):
    """OpenAI's predicted output."""

    type: Literal["content"]
    """Always content."""
    content: str | List[PredictionPart]
    """What the answer will mostly be."""


class ChatCompletionRequest(SamplingFields):
    fields_elsewhere: ClassVar = {
        **SamplingFields.fields_elsewhere,
        "prompt": "Give 'messages', or send the prompt to /v1/completions.",
        "echo": "Only /v1/completions has it.",
        "best_of": "Only /v1/completions has it.",
    }

    messages: List[ChatMessage] = Field(min_length=1, max_length=16384)
    """The conversation."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """The same as `max_tokens`; give one."""
    logprobs: bool = False
    """Whether each token comes with its log-probability."""
    top_logprobs: int | None = Field(default=None, ge=0)
    """With `logprobs`: those of this many likeliest tokens, too."""
    prediction: Prediction | None = None
    """What the answer will mostly be. Changes the speed, never the answer."""
    modalities: List[Literal["text"]] | None = None
    """Only text is served."""
    tools: List[Tool] | None = None
    """What the model may call."""
    tool_choice: str | dict[str, Any] | None = None
    """none, auto, required, or an object that names a tool or lists `allowed_tools`. Unset: auto."""
    parallel_tool_calls: bool | None = None
    """False: one call at most."""
    functions: List[FunctionDefinition] | None = None
    """The deprecated spelling of `tools`."""
    function_call: str | dict[str, Any] | None = None
    """The deprecated spelling of `tool_choice`."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """A hint for the chat template; none turns thinking off where the template can."""
    separate_reasoning: bool = True
    """False: thinking stays in `content`, as it was written."""
    include_reasoning: bool = True
    """False: thinking is left out."""
    stop_in_reasoning: bool = False
    """Whether `stop` ends an answer inside its thinking, too."""
    thinking_budget: int | None = Field(default=None, ge=0)
    """Most tokens of thinking."""
    thinking_token_budget: int | None = Field(default=None, ge=0)
    """The same as thinking_budget."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template, such as `enable_thinking`."""
    add_generation_prompt: bool | None = None
    """Whether the template opens the assistant's turn. Unset: true."""
    continue_final_message: bool = False
    """Whether the answer goes on in the last message, which must be the assistant's."""

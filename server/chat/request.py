"""From a chat body to what is asked of the model."""

from __future__ import annotations

from scheduler.messages import SchedulerReady
from server.chat.messages import template_messages
from server.chat.protocol import ChatCompletionRequest, Prediction
from server.context import ServerContext
from server.errors import BadRequestError
from server.reasoning.state import ThinkingWishes
from server.request.description import AnswerRequest, Conversation
from server.request.from_fields import answer_request, refuse_more_logprobs, refuse_stream_options
from server.text.chat_template import RESERVED_ARGUMENTS
from server.tools.definitions import read_tools


def chat_request(body: ChatCompletionRequest, context: ServerContext, ready: SchedulerReady) -> AnswerRequest:
    """Describe ``body``.

    Raises
    ------
    BadRequestError
        Names the field that is wrong or contradicts another.
    """
    refuse_stream_options(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequestError("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    refuse_more_logprobs(body.top_logprobs, context, param="top_logprobs")
    max_tokens, name = _max_tokens(body)
    return answer_request(
        body,
        context,
        ready,
        prompt=conversation(body, context),
        n=body.n,
        max_tokens=max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        thinking=ThinkingWishes(
            budget=_budget(body),
            stops_apply=body.stop_in_reasoning,
            is_separate=body.separate_reasoning,
            is_shown=body.include_reasoning,
        ),
        prediction=_predicted(body.prediction),
        names={"max_tokens": name},
    )


def conversation(body: ChatCompletionRequest, context: ServerContext) -> Conversation:
    """What the chat template renders. Raises :class:`BadRequestError`."""
    tools = read_tools(
        tools=body.tools,
        tool_choice=body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls,
        functions=body.functions,
        function_call=body.function_call,
        max_tools=context.config.max_tools,
    )
    messages = template_messages(body.messages)
    continues = body.continue_final_message
    if continues and body.add_generation_prompt:
        raise BadRequestError(
            "'continue_final_message' goes on in the last message, 'add_generation_prompt' opens a new one: "
            "set one of them.",
            param="add_generation_prompt",
        )
    if continues and messages[-1]["role"] != "assistant":
        raise BadRequestError(
            "'continue_final_message' needs a last message of the role 'assistant'.", param="continue_final_message"
        )
    arguments = body.chat_template_kwargs or {}
    for name in arguments:
        if name in RESERVED_ARGUMENTS:
            raise BadRequestError(
                f"'chat_template_kwargs.{name}' cannot be set: the server sets it.",
                param=f"chat_template_kwargs.{name}",
            )
    if tools is not None and continues and tools.demand == "required":
        raise BadRequestError(
            "'continue_final_message' goes on in a message of words: no call can be required.", param="tool_choice"
        )
    return Conversation(
        messages=messages,
        tools=tools,
        opens_turn=not continues if body.add_generation_prompt is None else body.add_generation_prompt,
        continues_last=continues,
        template_arguments=arguments,
        effort=body.reasoning_effort,
    )


def _max_tokens(body: ChatCompletionRequest) -> tuple[int | None, str]:
    """The limit and the field that gives it."""
    if body.max_completion_tokens is None:
        if body.max_tokens == 0:
            raise BadRequestError("'max_tokens' must be at least 1.", param="max_tokens")
        return body.max_tokens, "max_tokens"
    if body.max_tokens not in (None, body.max_completion_tokens):
        raise BadRequestError("'max_tokens' and 'max_completion_tokens' differ; give one of them.", param="max_tokens")
    return body.max_completion_tokens, "max_completion_tokens"


def _budget(body: ChatCompletionRequest) -> int | None:
    budget, other = body.thinking_budget, body.thinking_token_budget
    if None not in (budget, other) and budget != other:
        raise BadRequestError(
            "'thinking_budget' and 'thinking_token_budget' differ; give one of them.", param="thinking_token_budget"
        )
    return other if budget is None else budget


def _predicted(prediction: Prediction | None) -> str:
    content = "" if prediction is None else prediction.content
    return content if isinstance(content, str) else "".join(part.text for part in content)

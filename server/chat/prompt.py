"""From a chat request to the prompt's token ids."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from scheduler.messages import SchedulerReady
from server.chat.messages import template_messages
from server.chat.protocol import ChatCompletionRequest
from server.chat_template import RESERVED_ARGUMENTS, ChatTemplate
from server.context import ServerContext
from server.errors import BadRequestError
from server.limits import refuse_hopeless_text
from server.reasoning.state import ThinkingState
from server.tools.definitions import ToolRequest
from server.tools.prompt import messages_with_tools, template_tools

_THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which chat templates turn thinking off: Qwen 3's and its relatives', DeepSeek V3.1's and Granite's."""
_LONG_CONVERSATION = 8192  # characters; a longer one is rendered in a thread


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A chat request as its model sees it."""

    text: str
    """The rendered prompt, with the marks of :class:`~server.protected_text.ProtectedText`."""
    token_ids: list[int]
    thinking: ThinkingState


async def encode_conversation(
    context: ServerContext, body: ChatCompletionRequest, ready: SchedulerReady, tools: ToolRequest | None = None
) -> Conversation:
    """Render the model's chat template and encode it.

    Parameters
    ----------
    tools
        What :func:`server.tools.definitions.read_tools` made of the request.

    Raises
    ------
    BadRequestError
        The messages are not served or not liked by the template, or the prompt is too long.
    """
    form = context.format
    messages = template_messages(body.messages, knows_developer=context.chat_template.knows_developer)
    options = _options(body, messages)
    if tools is not None and options["continue_final_message"] and tools.demand == "required":
        raise BadRequestError(
            "'continue_final_message' goes on in a message of words: no call can be required.", param="tool_choice"
        )
    shown = messages
    if form.tools_need_words:
        shown = messages_with_tools(messages, tools)
    elif tools is not None:
        options["tools"] = template_tools(tools)
    size = sum(len(message["content"]) for message in shown) + 256 * len(tools.offered if tools else ())
    if size + 64 * len(messages) < _LONG_CONVERSATION:
        text = _render(context.chat_template, shown, options)
    else:
        text = await asyncio.to_thread(_render, context.chat_template, shown, options)
    if options["add_generation_prompt"] and body.reasoning_effort != "none":
        text += form.opening(text)
    refuse_hopeless_text(context.tokenizer.fewest_tokens(text), ready, param="messages")
    token_ids = await context.tokenizer.run(context.tokenizer.encode_rendered, text)
    if not token_ids:
        raise BadRequestError("The rendered prompt is empty.", param="messages")
    return Conversation(text=text, token_ids=token_ids, thinking=form.thinking_state(text))


def _options(body: ChatCompletionRequest, messages: list[dict[str, Any]]) -> dict[str, Any]:
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
    arguments = dict(body.chat_template_kwargs or {})
    for name in arguments:
        if name in RESERVED_ARGUMENTS:
            raise BadRequestError(
                f"'chat_template_kwargs.{name}' cannot be set: the server sets it.",
                param=f"chat_template_kwargs.{name}",
            )
    if body.reasoning_effort is not None:
        arguments.setdefault("reasoning_effort", body.reasoning_effort)
        if body.reasoning_effort == "none":
            for switch in _THINKING_SWITCHES:
                arguments.setdefault(switch, False)
    return {
        "add_generation_prompt": not continues if body.add_generation_prompt is None else body.add_generation_prompt,
        "continue_final_message": continues,
        "arguments": arguments,
    }


def _render(template: ChatTemplate, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
    return template.render(messages, **options)

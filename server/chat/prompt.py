"""From a chat request to the prompt's token ids."""

from __future__ import annotations

import asyncio
from typing import Any

from scheduler.messages import SchedulerReady
from server.chat.messages import template_messages
from server.chat.protocol import ChatCompletionRequest
from server.chat_template import RESERVED_ARGUMENTS, ChatTemplate
from server.context import ServerContext
from server.errors import BadRequestError
from server.limits import refuse_hopeless_text

_LONG_CONVERSATION = 8192  # characters; a longer one is rendered in a thread


async def encode_conversation(context: ServerContext, body: ChatCompletionRequest, ready: SchedulerReady) -> list[int]:
    """Render the model's chat template and encode it.

    Raises
    ------
    BadRequestError
        The messages are not served or not liked by the template, or the prompt is too long.
    """
    messages = template_messages(body.messages, knows_developer=context.chat_template.knows_developer)
    options = _options(body, messages)
    size = sum(len(message["content"]) for message in messages)
    if size + 64 * len(messages) < _LONG_CONVERSATION:
        text = _render(context.chat_template, messages, options)
    else:
        text = await asyncio.to_thread(_render, context.chat_template, messages, options)
    refuse_hopeless_text(context.tokenizer.fewest_tokens(text), ready, param="messages")
    token_ids = await context.tokenizer.run(context.tokenizer.encode_rendered, text)
    if not token_ids:
        raise BadRequestError("The rendered prompt is empty.", param="messages")
    return token_ids


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
    arguments = body.chat_template_kwargs or {}
    for name in arguments:
        if name in RESERVED_ARGUMENTS:
            raise BadRequestError(
                f"'chat_template_kwargs.{name}' cannot be set: the server sets it.",
                param=f"chat_template_kwargs.{name}",
            )
    return {
        "add_generation_prompt": not continues if body.add_generation_prompt is None else body.add_generation_prompt,
        "continue_final_message": continues,
        "arguments": arguments,
    }


def _render(template: ChatTemplate, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
    return template.render(messages, **options)

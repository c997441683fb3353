"""From a conversation to the prompt's token ids."""

from __future__ import annotations

import asyncio
from typing import Any

from scheduler.messages import SchedulerReady
from server.context import ServerContext
from server.errors import BadRequestError
from server.request.description import Conversation, Prompt
from server.request.limits import refuse_hopeless_text
from server.tools.prompt import messages_with_tools, template_tools

_THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which chat templates turn thinking off: Qwen 3's and its relatives', DeepSeek V3.1's and Granite's."""
_LONG_CONVERSATION = 8192  # characters; a longer one is rendered in a thread


async def encode_conversation(context: ServerContext, conversation: Conversation, ready: SchedulerReady) -> Prompt:
    """Render the model's chat template and encode it.

    Raises
    ------
    BadRequestError
        The template does not take the messages, or the prompt is too long.
    """
    template, tokenizer, tools = context.chat_template, context.tokenizer, conversation.tools
    shown = list(conversation.messages)
    if not template.knows_developer:
        shown = [{**one, "role": "system"} if one["role"] == "developer" else one for one in shown]
    template_list = None
    if context.format.tools_need_words:
        shown = messages_with_tools(shown, tools)
    elif tools is not None:
        template_list = template_tools(tools)

    def render() -> str:
        return template.render(
            shown,
            tools=template_list,
            add_generation_prompt=conversation.opens_turn,
            continue_final_message=conversation.continues_last,
            arguments=_arguments(conversation),
        )

    size = sum(len(message["content"]) for message in shown) + 256 * len(tools.offered if tools else ())
    is_long = size + 64 * len(shown) >= _LONG_CONVERSATION
    text = await asyncio.to_thread(render) if is_long else render()
    if conversation.opens_turn and conversation.effort != "none":
        text += context.format.opening(text)
    refuse_hopeless_text(tokenizer.fewest_tokens(text), ready, param="messages")
    token_ids = await tokenizer.run(tokenizer.encode_rendered, text)
    if not token_ids:
        raise BadRequestError("The rendered prompt is empty.", param="messages")
    return Prompt(text=text, token_ids=token_ids, thinking=context.format.thinking_state(text))


async def encode_prediction(context: ServerContext, text: str, ready: SchedulerReady) -> list[int]:
    """Token ids of what the client expects the answer to be, for the drafter.

    Raises
    ------
    BadRequestError
        It is longer than any answer could be.
    """
    tokenizer, longest = context.tokenizer, ready.context_length
    if tokenizer.fewest_tokens(text) <= longest:
        token_ids = await tokenizer.run(tokenizer.encode_plain, text)
        if len(token_ids) <= longest:
            return token_ids
    raise BadRequestError(
        f"'prediction.content' is longer than the {longest} tokens that prompt and answer may have.",
        param="prediction.content",
    )


def _arguments(conversation: Conversation) -> dict[str, Any]:
    arguments = dict(conversation.template_arguments)
    if conversation.effort is not None:
        arguments.setdefault("reasoning_effort", conversation.effort)
        if conversation.effort == "none":
            for switch in _THINKING_SWITCHES:
                arguments.setdefault(switch, False)
    return arguments

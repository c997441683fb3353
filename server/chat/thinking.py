"""What the scheduler is told about a request's thinking."""

from __future__ import annotations

from constrained.spec import ReasoningSpec
from server.chat.prompt import Conversation
from server.chat.protocol import ChatCompletionRequest
from server.context import ServerContext
from server.errors import BadRequestError
from server.reasoning.state import ThinkingState


def reasoning_spec(
    body: ChatCompletionRequest, context: ServerContext, conversation: Conversation
) -> ReasoningSpec | None:
    """``None`` when the answer does not begin with thinking: then everything in it is answer to the scheduler.

    Raises
    ------
    BadRequestError
        Two different budgets.
    """
    budget, other = body.thinking_budget, body.thinking_token_budget
    if None not in (budget, other) and budget != other:
        raise BadRequestError(
            "'thinking_budget' and 'thinking_token_budget' differ; give one of them.", param="thinking_token_budget"
        )
    if conversation.thinking is not ThinkingState.OPEN or not context.formats.think_end_ids:
        return None
    return ReasoningSpec(
        think_end_ids=context.formats.think_end_ids,
        is_thinking=True,
        budget=other if budget is None else budget,
        stops_apply=body.stop_in_reasoning,
    )

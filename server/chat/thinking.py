"""What the scheduler is told about a request's thinking."""

from __future__ import annotations

from constrained.spec import ReasoningSpec
from server.chat.prompt import Conversation
from server.chat.protocol import ChatCompletionRequest
from server.chat.tool_use import AnswerConstraint
from server.context import ServerContext
from server.errors import BadRequestError


def reasoning_spec(
    body: ChatCompletionRequest, context: ServerContext, conversation: Conversation, constraint: AnswerConstraint
) -> ReasoningSpec | None:
    """``None`` when the answer holds no thinking: then everything in it is answer to the scheduler.

    Raises
    ------
    BadRequestError
        Two different budgets, or one that is not served.
    """
    return context.format.reasoning_spec(
        conversation.thinking,
        budget=_budget(body),
        stops_apply=body.stop_in_reasoning,
        has_form=constraint.spec is not None,
        constrains_calls=constraint.constrains_calls,
    )


def _budget(body: ChatCompletionRequest) -> int | None:
    budget, other = body.thinking_budget, body.thinking_token_budget
    if None not in (budget, other) and budget != other:
        raise BadRequestError(
            "'thinking_budget' and 'thinking_token_budget' differ; give one of them.", param="thinking_token_budget"
        )
    return other if budget is None else budget

"""What the scheduler is told about a request's thinking."""

from __future__ import annotations

from constrained.spec import ReasoningSpec
from server.chat.prompt import Conversation
from server.chat.protocol import ChatCompletionRequest
from server.chat.tool_use import AnswerConstraint
from server.context import ServerContext
from server.errors import BadRequestError
from server.reasoning.state import ThinkingState


def reasoning_spec(
    body: ChatCompletionRequest, context: ServerContext, conversation: Conversation, constraint: AnswerConstraint
) -> ReasoningSpec | None:
    """``None`` when the answer holds no thinking: then everything in it is answer to the scheduler.

    Raises
    ------
    BadRequestError
        Two different budgets, or one that is not served.
    """
    budget = _budget(body)
    formats = context.formats
    form = formats.reasoning
    if form is None or conversation.thinking is ThinkingState.CLOSED or not formats.think_end_ids:
        return None
    if conversation.thinking is ThinkingState.OPEN and not form.is_harmony:
        return ReasoningSpec(
            think_end_ids=formats.think_end_ids, is_thinking=True, budget=budget, stops_apply=body.stop_in_reasoning
        )
    if form.is_harmony and not constraint.constrains_calls and (constraint.spec is not None or budget is not None):
        # Up to the final channel everything counts as thinking: what is asked for begins there.
        return ReasoningSpec(
            think_end_ids=formats.think_end_ids, is_thinking=True, budget=budget, stops_apply=body.stop_in_reasoning
        )
    if form.is_harmony and budget is not None:
        raise BadRequestError(
            "'thinking_budget' does not go with 'tools' in the harmony format, where thinking and calls are told apart "
            "by the model alone.",
            param="thinking_budget",
            code="unsupported",
        )
    return ReasoningSpec(
        think_start_ids=formats.think_start_ids,
        think_end_ids=formats.think_part_end_ids,
        is_thinking=False,
        may_think_again=form.is_harmony,
        stops_apply=body.stop_in_reasoning,
    )


def _budget(body: ChatCompletionRequest) -> int | None:
    budget, other = body.thinking_budget, body.thinking_token_budget
    if None not in (budget, other) and budget != other:
        raise BadRequestError(
            "'thinking_budget' and 'thinking_token_budget' differ; give one of them.", param="thinking_token_budget"
        )
    return other if budget is None else budget

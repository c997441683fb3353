"""What a chat request may call, the grammar of its answer, and how that is read."""

from __future__ import annotations

from dataclasses import dataclass

from constrained.spec import GrammarSpec
from server.chat.prompt import Conversation
from server.chat.protocol import ChatCompletionRequest
from server.constraints import constraint_field, grammar_spec
from server.context import ServerContext
from server.errors import ApiError, BadRequestError
from server.formats.reader import Reading
from server.tools.constraint import tool_constraint
from server.tools.definitions import ToolRequest, read_tools


@dataclass(frozen=True, kw_only=True)
class AnswerConstraint:
    spec: GrammarSpec | None
    field: str
    """Field of the request that asked for it."""
    constrains_calls: bool = False
    has_free_text: bool = False


def tools_of(body: ChatCompletionRequest, context: ServerContext) -> ToolRequest | None:
    """The request's tools; ``None`` when it may call none. Raises :class:`BadRequestError`."""
    return read_tools(
        tools=body.tools,
        tool_choice=body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls,
        functions=body.functions,
        function_call=body.function_call,
        max_tools=context.config.max_tools,
    )


def answer_constraint(
    body: ChatCompletionRequest, context: ServerContext, tools: ToolRequest | None
) -> AnswerConstraint:
    """The grammar of the whole answer: calls, words in the form that was asked for, or either.

    Raises
    ------
    BadRequestError
        The constraints contradict each other or cannot be enforced.
    """
    config = context.config
    answer = grammar_spec(body, max_bytes=config.max_constraint_bytes)
    field = constraint_field(body)
    if tools is None:
        return AnswerConstraint(spec=answer, field=field)
    if tools.demand == "required" and answer is not None and field != "response_format":
        raise BadRequestError(
            f"'{field}' constrains an answer in words, but a tool call is required: give one of them.",
            param=field,
            code="conflicting_constraints",
        )
    if not config.serves_grammars:
        if tools.demand == "required" or any(tool.is_strict for tool in tools.callable):
            raise BadRequestError(
                "This server runs without grammars (--grammar-backend none): no call can be required, and no tool be "
                "strict.",
                param="tools",
                code="unsupported",
            )
        return AnswerConstraint(spec=answer, field=field)
    calls = context.format.calls
    if body.continue_final_message and calls.calls_are_messages:
        raise BadRequestError(
            f"'continue_final_message' goes on inside a message, and calls in the {calls.name} format are messages of "
            "their own: it is not served with 'tools'.",
            param="continue_final_message",
            code="unsupported",
        )
    constraint = tool_constraint(
        tools,
        calls,
        token_ids=context.tokenizer.control_ids,
        answer=answer,
        answer_field=field,
        lenient=body.lenient,
        backend=body.grammar_backend or "auto",
        max_bytes=config.max_constraint_bytes,
    )
    is_of_calls = constraint.spec is not answer
    return AnswerConstraint(
        spec=constraint.spec,
        field="tools" if is_of_calls else field,
        constrains_calls=is_of_calls,
        has_free_text=is_of_calls and constraint.has_free_text,
    )


def naming_tool(error: ApiError, tools: ToolRequest | None) -> ApiError:
    """``error`` with the name of the tool whose field it blames, if it does."""
    for tool in () if tools is None else tools.offered:
        if (error.param or "").startswith(tool.path):
            error.message = f"Tool {tool.name!r}: {error.message}"
    return error


def reading_of(
    body: ChatCompletionRequest,
    context: ServerContext,
    conversation: Conversation,
    tools: ToolRequest | None,
    *,
    is_constrained: bool,
) -> Reading:
    """How the request's answers are read."""
    return Reading(
        format=context.format,
        thinking=conversation.thinking,
        tools=tools,
        is_constrained=is_constrained,
        separates_reasoning=body.separate_reasoning,
        shows_reasoning=body.include_reasoning,
    )

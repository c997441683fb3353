"""The grammar of a whole answer: calls, words in the form that was asked for, or either."""

from __future__ import annotations

from dataclasses import dataclass

from constrained.spec import GrammarSpec
from server.context import ServerContext
from server.errors import ApiError, BadRequestError
from server.request.description import AnswerRequest, Conversation
from server.tools.constraint import tool_constraint
from server.tools.definitions import ToolRequest


@dataclass(frozen=True, kw_only=True)
class AnswerConstraint:
    spec: GrammarSpec | None
    field: str
    """Field of the request that asked for it."""
    constrains_calls: bool = False
    has_free_text: bool = False


def answer_constraint(context: ServerContext, asked: AnswerRequest) -> AnswerConstraint:
    """What holds the answer to the request's tools and form.

    Raises
    ------
    BadRequestError
        The constraints contradict each other or cannot be enforced.
    """
    config, calls, tools = context.config, context.format.calls, asked.tools
    answer, field = asked.form.spec, asked.form.field
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
    if isinstance(asked.prompt, Conversation) and asked.prompt.continues_last:
        _refuse_calls_in_a_continued_message(tools, calls.name, are_messages=calls.calls_are_messages)
    constraint = tool_constraint(
        tools,
        calls,
        token_ids=context.tokenizer.control_ids,
        answer=answer,
        answer_field=field,
        lenient=asked.is_lenient,
        backend=asked.grammar_backend or "auto",
        max_bytes=config.max_constraint_bytes,
    )
    is_of_calls = constraint.spec is not answer
    return AnswerConstraint(
        spec=constraint.spec,
        field="tools" if is_of_calls else field,
        constrains_calls=is_of_calls,
        has_free_text=is_of_calls and constraint.has_free_text,
    )


def name_tool(error: ApiError, tools: ToolRequest | None) -> None:
    """Put the name of the tool whose field ``error`` blames, if it does, into its message."""
    for tool in () if tools is None else tools.offered:
        if (error.param or "").startswith(tool.path):
            error.message = f"Tool {tool.name!r}: {error.message}"


def _refuse_calls_in_a_continued_message(tools: ToolRequest, name: str, *, are_messages: bool) -> None:
    if are_messages:
        raise BadRequestError(
            f"'continue_final_message' goes on inside a message, and calls in the {name} format are messages of their "
            "own: it is not served with 'tools'.",
            param="continue_final_message",
            code="unsupported",
        )

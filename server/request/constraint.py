"""The grammar of a whole answer: calls, words in the form that was asked for, or either."""

from __future__ import annotations

from server.context import ServerContext
from server.errors import ApiError, BadRequestError
from server.request.description import AnswerRequest, Constraint, Conversation
from server.tools.constraint import tool_constraint
from server.tools.definitions import ToolRequest


def answer_constraint(context: ServerContext, asked: AnswerRequest) -> Constraint:
    """What holds the answer to the request's tools and form.

    Raises
    ------
    BadRequestError
        The constraints contradict each other or cannot be enforced.
    """
    config, calls, tools = context.config, context.format.calls, asked.tools
    answer, field = asked.constraint.spec, asked.constraint.field
    if tools is None:
        return asked.constraint
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
        return asked.constraint
    if calls.calls_are_messages and isinstance(asked.prompt, Conversation) and asked.prompt.continues_last:
        raise BadRequestError(
            f"'continue_final_message' goes on inside a message, and calls in the {calls.name} format are messages of "
            "their own: it is not served with 'tools'.",
            param="continue_final_message",
            code="unsupported",
        )
    of_calls = tool_constraint(
        tools,
        calls,
        token_ids=context.tokenizer.control_ids,
        answer=answer,
        answer_field=field,
        lenient=asked.is_lenient,
        backend=asked.grammar_backend or "auto",
        max_bytes=config.max_constraint_bytes,
    )
    if of_calls.spec is answer:
        return asked.constraint
    return Constraint(spec=of_calls.spec, field="tools", constrains_calls=True, has_free_text=of_calls.has_free_text)


def name_tool(error: ApiError, tools: ToolRequest | None) -> None:
    """Put the name of the tool whose field ``error`` blames, if it does, into its message."""
    for tool in () if tools is None else tools.offered:
        if (error.param or "").startswith(tool.path):
            error.message = f"Tool {tool.name!r}: {error.message}"

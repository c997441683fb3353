"""``POST /apply_template``, ``/parse_tool_calls`` and ``/separate_reasoning``: parts of a chat answer, on their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.answer.events import collect
from server.chat.message_body import call_object
from server.chat.protocol import ChatCompletionRequest
from server.chat.request import conversation
from server.context import context_of
from server.errors import BadRequestError
from server.formats.answer_format import call_parser
from server.formats.reader import Reading
from server.formats.registry import format_of, tool_parser
from server.http.body import read_request
from server.http.documentation import errors, request_body
from server.http.json_response import JsonResponse
from server.reasoning.formats import reasoning_format
from server.reasoning.state import ThinkingState
from server.request.prompt import encode_conversation
from server.tools.definitions import Tool, read_tools
from server.validation import List, RequestModel

router = APIRouter(responses=errors(401, 500))

Parser = TypeVar("Parser")


class ParseToolCallsRequest(RequestModel):
    text: str
    """What a model wrote."""
    tools: List[Tool]
    """What it was offered."""
    tool_call_parser: str | None = None
    """Unset: the served model's."""


class SeparateReasoningRequest(RequestModel):
    text: str
    """What a model wrote."""
    reasoning_parser: str | None = None
    """Unset: the served model's."""
    is_thinking: bool | None = None
    """Whether the prompt had opened the thinking part, or closed it. Unset: it said nothing."""


@router.post("/apply_template", openapi_extra=request_body(ChatCompletionRequest), responses=errors(404, 503))
async def apply_template(request: Request) -> Response:
    """The prompt that a chat completions request with this body would have."""
    context = context_of(request)
    body = await read_request(ChatCompletionRequest, request, context.config)
    context.resolve_model(body.model)
    prompt = await encode_conversation(context, conversation(body, context), context.require_ready())
    return JsonResponse(
        {
            "prompt": context.tokenizer.protected_text.unmark(prompt.text),
            "token_ids": prompt.token_ids,
            "count": len(prompt.token_ids),
            "is_thinking": prompt.thinking is ThinkingState.OPEN,
        }
    )


@router.post("/parse_tool_calls", openapi_extra=request_body(ParseToolCallsRequest))
async def parse_tool_calls(request: Request) -> Response:
    """Words and calls of a text; a call that is malformed, or of a tool that is not offered, is words."""
    context = context_of(request)
    body = await read_request(ParseToolCallsRequest, request, context.config)
    kind = _named(body.tool_call_parser, tool_parser, context.format.calls, "tool_call_parser")
    tools = read_tools(tools=body.tools, max_tools=context.config.max_tools)
    parser = call_parser(kind, tools, is_constrained=False)
    answer = collect([*parser.add(body.text), *parser.finish()])
    result: dict[str, Any] = {
        "normal_text": answer.content,
        "tool_calls": [call_object(call) for call in answer.calls],
    }
    if answer.reasoning:
        result["reasoning_text"] = answer.reasoning
    return JsonResponse(result)


@router.post("/separate_reasoning", openapi_extra=request_body(SeparateReasoningRequest))
async def separate_reasoning(request: Request) -> Response:
    """Thinking and answer of a text."""
    context = context_of(request)
    body = await read_request(SeparateReasoningRequest, request, context.config)
    own = context.format
    thinking = _named(body.reasoning_parser, reasoning_format, own.thinking, "reasoning_parser")
    form = format_of(thinking, own.calls, context.assets.chat_template, context.tokenizer)
    state = {True: ThinkingState.OPEN, False: ThinkingState.CLOSED, None: ThinkingState.UNSAID}[body.is_thinking]
    answer = collect(Reading(format=form, thinking=state).reader().read_whole(body.text))
    return JsonResponse({"reasoning_text": answer.reasoning, "text": answer.content})


def _named(name: str | None, find: Callable[[str], Parser], default: Parser, param: str) -> Parser:
    """The parser of that name, or the served model's."""
    if name is None:
        return default
    try:
        return find(name)
    except ValueError as error:
        text = str(error)
        raise BadRequestError(f"{text[0].upper()}{text[1:]}.", param=param, code="invalid_value") from error

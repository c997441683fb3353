"""``POST /v1/chat/completions``."""

from __future__ import annotations

import uuid

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.chat.answer import ChatAnswer
from server.chat.protocol import ChatCompletionRequest
from server.chat.request import chat_request
from server.context import context_of
from server.http.body import read_request
from server.http.documentation import errors, request_body
from server.http.event_stream import respond
from server.request.generate import start_answer

router = APIRouter(responses=errors(401, 404, 409, 429, 500, 503, 504))


@router.post("/v1/chat/completions", openapi_extra=request_body(ChatCompletionRequest))
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    context = context_of(request)
    body = await read_request(ChatCompletionRequest, request, context.config)
    model = context.resolve_model(body.model)
    ready = context.require_ready()
    asked = chat_request(body, context, ready)
    started = await start_answer(context, request, asked, ready, answer_id=f"chatcmpl-{uuid.uuid4().hex}")
    return await respond(started.generation, ChatAnswer(context, body, asked, started, model))

"""``POST /v1/completions``."""

from __future__ import annotations

import uuid

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.completions.answer import CompletionAnswer
from server.completions.protocol import CompletionRequest
from server.completions.request import completion_request
from server.context import context_of
from server.http.body import read_request
from server.http.documentation import errors, request_body
from server.http.event_stream import respond
from server.request.generate import start_answer

router = APIRouter(responses=errors(401, 404, 409, 429, 500, 503, 504))


@router.post("/v1/completions", openapi_extra=request_body(CompletionRequest))
async def create_completion(request: Request) -> Response:
    """Continue a text."""
    context = context_of(request)
    body = await read_request(CompletionRequest, request, context.config)
    model = context.resolve_model(body.model)
    ready = context.require_ready()
    asked = await completion_request(body, context, ready)
    started = await start_answer(context, request, asked, ready, answer_id=f"cmpl-{uuid.uuid4().hex}")
    return await respond(started.generation, CompletionAnswer(context, body, started, model))

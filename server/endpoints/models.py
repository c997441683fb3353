"""``GET /v1/models`` and ``/v1/models/{id}``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.context import ServerContext, context_of
from server.http.documentation import errors
from server.http.json_response import JsonResponse

router = APIRouter(responses=errors(401, 500))


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """The names this server answers to."""
    context = context_of(request)
    return JsonResponse({"object": "list", "data": [_model(context, name) for name in context.model_names]})


@router.get("/v1/models/{model_id:path}", responses=errors(404))
async def retrieve_model(request: Request, model_id: str) -> Response:
    """One of them."""
    context = context_of(request)
    return JsonResponse(_model(context, context.resolve_model(model_id)))


def _model(context: ServerContext, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": context.assets.created,
        "owned_by": "scansion",
        "root": context.assets.name,
        "parent": None,
        "max_model_len": context.assets.context_length,
    }

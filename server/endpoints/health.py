"""``GET /health``: 200 when requests are served, 503 otherwise."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.context import context_of
from server.http.json_response import JsonResponse

router = APIRouter()


@router.head("/health", include_in_schema=False)
@router.get("/health", responses={503: {"description": "It does not: it starts, drains, or has no scheduler."}})
async def health(request: Request) -> Response:
    """Whether this server takes requests."""
    context = context_of(request)
    headers = {"Retry-After": str(context.config.retry_after)}
    if context.is_draining:
        return JsonResponse({"status": "draining"}, 503, headers)
    if context.engine.ready is None:
        return JsonResponse({"status": "scheduler not ready"}, 503, headers)
    return JsonResponse({"status": "ok"})

"""What an operator asks for: version, state, metrics, cache flush, aborts, and a page that names the endpoints."""

from __future__ import annotations

import html
import time

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from server.context import context_of
from server.errors import BadRequestError
from server.http.body import read_request
from server.http.documentation import errors, request_body
from server.http.json_response import JsonResponse
from server.metrics.scheduler_stats import total
from server.validation import RequestModel

router = APIRouter(responses=errors(401, 500))


class AbortBody(RequestModel):
    """Which requests to stop."""

    request_id: str | None = None
    """The answer's id, or its X-Request-Id."""
    rid: str | None = None
    """The same, as SGLang spells it."""
    abort_all: bool = False
    """Every request."""


@router.get("/version")
async def version(request: Request) -> Response:
    """This server's version."""
    return JsonResponse({"version": request.app.version})


@router.get("/server_info")
async def server_info(request: Request) -> Response:
    """The model, the schedulers and what they are doing."""
    context = context_of(request)
    ready = context.engine.ready
    stats = await context.engine.stats()
    there = [group for group in stats if group is not None]
    return JsonResponse(
        {
            "version": request.app.version,
            "models": context.model_names,
            "model_path": str(context.assets.weights_path),
            "uptime_seconds": round(time.time() - context.started, 3),
            "is_draining": context.is_draining,
            "generation_defaults": context.assets.generation_defaults,
            "limits": {
                "max_body_bytes": context.config.max_body_bytes,
                "max_choices": context.config.max_choices,
                "max_prompts": context.config.max_prompts,
                "max_stop_strings": context.config.max_stop_strings,
                "max_top_logprobs": context.config.max_top_logprobs,
            },
            "scheduler": None if ready is None else msgspec.structs.asdict(ready),
            "stats": msgspec.structs.asdict(total(there)) if there else None,
            "groups": [
                {"scheduler": _as_dict(group.ready), "stats": _as_dict(of_group)}
                for group, of_group in zip(context.engine.groups, stats, strict=True)
            ],
        }
    )


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    context = context_of(request)
    stats = await context.engine.stats()
    return Response(context.metrics.render(stats), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.post("/flush_cache", responses=errors(503, 504))
async def flush_cache(request: Request) -> Response:
    """Empty the prefix cache."""
    return JsonResponse({"freed_tokens": await context_of(request).engine.flush_cache()})


@router.post("/abort_request", openapi_extra=request_body(AbortBody), responses=errors(503))
async def abort_request(request: Request) -> Response:
    """Stop a request by its answer's id or its X-Request-Id; its client gets an error."""
    context = context_of(request)
    body = await read_request(AbortBody, request, context.config)
    context.require_ready()
    request_id = body.request_id or body.rid
    if body.abort_all == bool(request_id):
        raise BadRequestError("Give either 'request_id' or 'abort_all': true.", param="request_id")
    named = context.running.values() if request_id is None else [context.running.get(request_id, set())]
    context.engine.abort(request_id)  # schedulers look at the requests of all HTTP processes
    return JsonResponse({"aborted": len(set().union(*named))})


@router.get("/", include_in_schema=False)
async def index(request: Request) -> Response:
    """A page that names the endpoints."""
    rows = "".join(
        f"<tr><td>{method.upper()}</td><td><code>{html.escape(path)}</code></td>"
        f"<td>{html.escape(operation.get('description', ''))}</td></tr>"
        for path, operations in request.app.openapi()["paths"].items()
        for method, operation in operations.items()
    )
    return HTMLResponse(
        f"<!doctype html><title>Scansion</title><h1>Scansion {html.escape(request.app.version)}</h1>"
        f"<p>OpenAI-compatible; see <a href='docs'>docs</a>.</p><table>{rows}</table>"
    )


def _as_dict(described: msgspec.Struct | None) -> dict[str, object] | None:
    return None if described is None else msgspec.structs.asdict(described)

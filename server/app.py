"""The ASGI application of one HTTP process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.types import ASGIApp

import server.chat.parts
import server.chat.router
import server.chat.tokens
import server.completions.router
import server.endpoints.administration
import server.endpoints.health
import server.endpoints.models
from server.config import HttpConfig
from server.context import ServerContext
from server.engine.copies import Engine
from server.formats.registry import answer_format
from server.http.auth import Auth
from server.http.cors import Cors
from server.http.documentation import install_openapi
from server.http.edge import Edge
from server.http.error_response import install_error_handlers
from server.metrics.registry import Metrics
from server.models.assets import ModelAssets
from server.text.chat_template import ChatTemplate
from server.text.tokenizer import Tokenizer

_ROUTERS = (
    server.chat.router.router,
    server.completions.router.router,
    server.endpoints.models.router,
    server.chat.tokens.router,
    server.chat.parts.router,
    server.endpoints.health.router,
    server.endpoints.administration.router,
)


def create_context(config: HttpConfig, assets: ModelAssets) -> ServerContext:
    """Load what the endpoints share. The engine connects when the application starts.

    Raises
    ------
    ChatTemplateError
        The model's template is not valid.
    UnsupportedTokenizerError
        The model's tokenizer cannot be described by token bytes.
    ValueError
        There is no parser of a configured name.
    """
    tokenizer = Tokenizer(assets)
    template = ChatTemplate(
        assets, tokenizer.protected_text, timeout=config.template_timeout, max_chars=config.template_max_chars
    )
    engine = Engine(
        config.endpoints,
        call_timeout=config.call_timeout,
        retry_after=config.retry_after,
        scheduler_timeout=config.scheduler_timeout,
    )
    form = answer_format(config, assets.chat_template, tokenizer)
    return ServerContext(config, assets, tokenizer, template, engine, Metrics(), form)


def create_app(context: ServerContext) -> ASGIApp:
    """The application: edge, CORS and API keys around the routers."""
    config = context.config

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        context.engine.start()
        try:
            yield
        finally:
            await context.engine.close()

    options: dict[str, Any] = {
        "title": "Scansion",
        "version": server_version(),
        "lifespan": lifespan,
        "redoc_url": None,
        "root_path": config.root_path,
    }
    # The page's scripts come from the package: a server often has no way out to a content network.
    app = FastAPIOffline(**options) if config.docs else FastAPI(docs_url=None, openapi_url=None, **options)
    app.state.context = context
    for router in _ROUTERS:
        app.include_router(router)
    routes = [route for router in _ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    install_error_handlers(app, [route.path for route in routes if route.include_in_schema])
    install_openapi(app)

    asgi: ASGIApp = Auth(app, config.api_keys, root_path=config.root_path)
    if config.cors_origins:
        asgi = Cors(
            asgi,
            allow_origins=list(config.cors_origins),
            allow_methods=["GET", "POST", "OPTIONS"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    return Edge(asgi, context)


def server_version() -> str:
    try:
        return metadata.version("scansion")
    except metadata.PackageNotFoundError:  # run from a checkout that was never installed
        return "0"

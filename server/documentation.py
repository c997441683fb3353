"""OpenAPI parts: endpoints read their bodies themselves, so each says which model it reads."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REFERENCE = "#/components/schemas/{model}"


def request_body(model: type[BaseModel]) -> dict[str, Any]:
    """``openapi_extra`` of an endpoint that reads ``model`` from its body."""
    _documented[model.__name__] = model
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


_documented: dict[str, type[BaseModel]] = {}  # filled while the routers are imported, only read afterwards


def install_openapi(app: FastAPI) -> None:
    """Make ``/openapi.json`` hold the request models."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            models = [(model, "validation") for model in _documented.values()]
            _, definitions = models_json_schema(models, ref_template=_REFERENCE)  # type: ignore[arg-type]
            schema.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

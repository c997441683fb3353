"""OpenAPI parts: endpoints read their bodies themselves, so each says which model it reads and what errors it gives."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

_REFERENCE = "#/components/schemas/{model}"

_ERRORS = {
    400: "The request is wrong: `message` says what to change, and `param` names the field.",
    401: "The API key is missing or wrong.",
    404: "No model of that name is served.",
    408: "The body did not arrive in time.",
    409: "Someone stopped the request with `/abort_request`.",
    413: "The body is larger than `--max-body-bytes`.",
    429: "Too many requests wait; `Retry-After` says when to come back.",
    500: "A fault of the server; the log has it.",
    503: "The scheduler starts or is gone, or the server shuts down; `Retry-After` says when to come back.",
    504: "Not admitted, or not finished, in time.",
}


class ErrorDetail(BaseModel):
    """What a program reads of an error, and what a person."""

    message: str = Field(description="What is wrong and what to change.")
    type: str = Field(description="The kind of error, as OpenAI's clients know it.")
    param: str | None = Field(description="The field to blame, such as `messages[0].role`.")
    code: str = Field(description="A word for programs, such as `invalid_value`.")


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail = Field(description="What went wrong.")


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """``responses`` of an endpoint that answers with these errors."""
    content = {"application/json": {"schema": {"$ref": _REFERENCE.format(model=ErrorBody.__name__)}}}
    return {status: {"description": _ERRORS[status], "content": content} for status in statuses}


def request_body(model: type[BaseModel]) -> dict[str, Any]:
    """``openapi_extra`` of an endpoint that reads ``model`` from its body, with the errors that come of reading it."""
    _documented[model.__name__] = model
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {str(status): answer for status, answer in errors(400, 408, 413).items()},
    }


_documented: dict[str, type[BaseModel]] = {ErrorBody.__name__: ErrorBody}
# Filled while the routers are imported, only read afterwards.


class _WithoutFieldTitles(GenerateJsonSchema):
    """pydantic's title of a field is its name once more."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def install_openapi(app: FastAPI) -> None:
    """Make ``/openapi.json`` hold the request models and the error body."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            for operations in schema["paths"].values():
                for operation in operations.values():
                    # The framework's own, for paths with a parameter: no path is refused here, and not in this form.
                    operation["responses"].pop("422", None)
                    operation["responses"] = dict(sorted(operation["responses"].items()))
            models = [(model, "validation") for model in _documented.values()]
            _, definitions = models_json_schema(
                models,  # type: ignore[arg-type]
                ref_template=_REFERENCE,
                schema_generator=_WithoutFieldTitles,
            )
            schema["components"] = {"schemas": definitions["$defs"]}
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

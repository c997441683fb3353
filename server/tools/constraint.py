"""The grammar of an answer that may, or must, call tools."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from constrained.spec import GrammarSpec
from server.errors import BadRequestError
from server.tools.custom import TRIGGER, custom_tag
from server.tools.definitions import ToolRequest
from server.tools.parser import Format, ToolCallParser, UnsupportedToolError


@dataclass(frozen=True)
class ToolConstraint:
    spec: GrammarSpec | None
    """``None``: the format cannot be constrained, and nothing demands it."""
    has_free_text: bool
    """Whether the answer may hold words that no form restricts."""


def tool_constraint(
    request: ToolRequest,
    parser: type[ToolCallParser],
    *,
    answer: GrammarSpec | None,
    lenient: bool,
    backend: str | None,
    max_bytes: int,
) -> ToolConstraint:
    """The grammar for ``request``, and for ``answer``, the form of the words, where the model may answer in words.

    Arguments are closed: a parameter that a schema neither declares nor rules out is never written. Where nothing
    demands certainty (``auto``, no strict tool), keywords that nothing enforces do not stand in the way.

    Raises
    ------
    BadRequestError
        The tools cannot be constrained, though the request demands it.
    """
    is_demanded = request.demand == "required" or any(tool.is_strict for tool in request.callable)
    try:
        tags = [_tag(tool, parser) for tool in request.callable]
    except UnsupportedToolError as error:
        if is_demanded:
            raise BadRequestError(
                f"{str(error)[0].upper()}{str(error)[1:]}.", param="tools", code="unsupported"
            ) from None
        return ToolConstraint(answer, answer is None)
    if request.demand == "required":
        form: Format | None = parser.required_format(tags, is_parallel=request.is_parallel)
    elif answer is not None:
        calls = parser.required_format(tags, is_parallel=request.is_parallel)
        form = {"type": "or", "elements": [calls, _answer_format(answer)]}
    else:
        form = _with_custom_trigger(parser.optional_format(tags, is_parallel=request.is_parallel), request)
    if (parser.prefill and request.demand != "required") or form is None:
        if is_demanded or answer is not None:
            raise BadRequestError(
                f"In the format {parser.name!r} calls are constrained only where 'tool_choice' requires one: strict "
                "tools and a response format beside tools are not served with 'auto'.",
                param="tools",
                code="unsupported",
            )
        return ToolConstraint(None, True)
    value = json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False, separators=(",", ":"))
    if len(value.encode()) > max_bytes:
        raise BadRequestError(f"'tools' are longer than the limit of {max_bytes} bytes.", param="tools")
    return ToolConstraint(
        GrammarSpec(
            kind="structural_tag", value=value, strict=True, lenient=lenient or not is_demanded, backend=backend
        ),
        request.demand == "auto" and answer is None,
    )


def _tag(tool: Any, parser: type[ToolCallParser]) -> Format:
    if tool.custom is not None:
        return custom_tag(tool.name, tool.custom.format)
    return parser.call_tag(tool.name, tool.parameters)


def _with_custom_trigger(form: Format | None, request: ToolRequest) -> Format | None:
    if form is None or form["type"] != "triggered_tags" or not request.custom_names:
        return form
    triggers = form["triggers"] if request.functions else []
    return {**form, "triggers": [*triggers, TRIGGER]}


def _answer_format(answer: GrammarSpec) -> Format:
    match answer.kind:
        case "json_schema":
            return {"type": "json_schema", "json_schema": json.loads(answer.value)}
        case "regex":
            return {"type": "regex", "pattern": answer.value}
        case "ebnf":
            return {"type": "grammar", "grammar": answer.value}
        case _:
            tag = json.loads(answer.value)
            if "format" not in tag:
                raise BadRequestError(
                    "'response_format' with 'structures' and 'triggers' does not go with 'tools'; use 'format'.",
                    param="response_format",
                    code="conflicting_constraints",
                )
            form: Format = tag["format"]
            return form

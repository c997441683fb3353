"""The grammar of an answer that may, or must, call tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from constrained.spec import GrammarSpec
from server.errors import BadRequestError
from server.tools.custom import custom_format
from server.tools.definitions import ToolRequest
from server.tools.forms import MAX_PARALLEL_CALLS, Format, resolve_tokens
from server.tools.parser import ToolCallParser


@dataclass(frozen=True)
class ToolConstraint:
    spec: GrammarSpec | None
    """``None``: the model's tokenizer cannot write this format, and nothing demands a call."""
    has_free_text: bool
    """Whether the answer may hold words that no form restricts."""


def tool_constraint(
    request: ToolRequest,
    parser: type[ToolCallParser],
    *,
    token_ids: Mapping[str, int],
    answer: GrammarSpec | None,
    answer_field: str,
    lenient: bool,
    backend: str | None,
    max_bytes: int,
) -> ToolConstraint:
    """The grammar for ``request``, and for ``answer``, the form of the words, where the model may answer in words.

    Arguments are closed: a parameter that a schema neither declares nor rules out is never written. Where nothing
    demands certainty (``auto``, no strict tool), keywords that nothing enforces do not stand in the way.

    Parameters
    ----------
    token_ids
        The tokenizer's special tokens, by their spelling.
    answer_field
        The field of the request that has ``answer``.

    Raises
    ------
    BadRequestError
        The tools cannot be constrained, though the request demands it.
    """
    is_demanded = request.demand == "required" or any(tool.is_strict for tool in request.callable)
    most = MAX_PARALLEL_CALLS if request.is_parallel else 1
    functions = [
        parser.call_format(one.name, one.parameters, one.path) for one in request.callable if one.custom is None
    ]
    customs = [custom_format(one.name, one.custom.format, one.path) for one in request.callable if one.custom]
    if request.demand == "required":
        form = parser.required_format(functions, customs, most)
    elif answer is not None:
        form = parser.answer_format(functions, customs, _answer_format(answer, answer_field), most)
    else:
        form = parser.optional_format(functions, customs, most)
    try:
        form = resolve_tokens(form, token_ids)
    except KeyError as error:
        if is_demanded or answer is not None:
            raise BadRequestError(
                f"Calls in the format {parser.name!r} need the special token {error.args[0]}, which this model's "
                "tokenizer does not have: choose another --tool-call-parser.",
                param="tools",
                code="unsupported",
            ) from None
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


def _answer_format(answer: GrammarSpec, field: str) -> Format:
    match answer.kind:
        case "json_schema":
            return {"type": "json_schema", "json_schema": json.loads(answer.value), "origin": field}
        case "regex":
            return {"type": "regex", "pattern": answer.value, "origin": field}
        case "ebnf":
            return {"type": "grammar", "grammar": answer.value, "origin": field}
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

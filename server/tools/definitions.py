"""What a request offers and demands: ``tools``, ``tool_choice`` and the deprecated ``functions``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from server.errors import BadRequestError
from server.validation import RequestModel

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

Demand = Literal["none", "auto", "required"]


class FunctionDefinition(RequestModel):
    name: str
    """1 to 64 of the characters a-z, A-Z, 0-9, _ and -."""
    description: str | None = None
    """What it does, for the model."""
    parameters: Any = None
    """Schema of its arguments, an object."""
    strict: bool | None = None
    """True: the request is refused unless calls can be held to the schema."""


class CustomGrammar(RequestModel):
    definition: str = Field(min_length=1)
    """The grammar or pattern."""
    syntax: Literal["lark", "regex"]
    """What it is written in."""


class CustomFormat(RequestModel):
    type: Literal["text", "grammar"]
    """Free text, or what a grammar allows."""
    grammar: CustomGrammar | None = None
    """With type grammar."""


class CustomDefinition(RequestModel):
    name: str
    """1 to 64 of the characters a-z, A-Z, 0-9, _ and -."""
    description: str | None = None
    """What it does, for the model."""
    format: CustomFormat | None = None
    """What its input looks like. Unset: any text."""


class Tool(RequestModel):
    """One of ``tools``."""

    type: Literal["function", "custom"] = "function"
    """Which of the two below is given."""
    function: FunctionDefinition | None = None
    """With type function."""
    custom: CustomDefinition | None = None
    """With type custom: a tool whose input is a text."""
    cache_control: Any = None
    """Ignored: prefixes are matched by their tokens."""


@dataclass(frozen=True, kw_only=True)
class OfferedTool:
    """A tool that passed its checks."""

    name: str
    description: str
    parameters: dict[str, Any]
    """Schema of a function's arguments, an object."""
    is_strict: bool = False
    custom: CustomDefinition | None = None
    path: str = ""
    """Where the request has the schema, or a custom tool's format."""

    @property
    def is_custom(self) -> bool:
        return self.custom is not None


@dataclass(frozen=True, kw_only=True)
class ToolRequest:
    """What a request says about tools."""

    offered: tuple[OfferedTool, ...]
    """Shown to the model."""
    callable: tuple[OfferedTool, ...]
    """Those of them that may be called."""
    demand: Demand
    is_parallel: bool
    is_named: bool
    """One certain tool is demanded."""
    is_legacy: bool
    """Asked in the terms of ``functions``, and so answered with ``function_call``."""

    @property
    def functions(self) -> dict[str, dict[str, Any]]:
        """Schemas of the functions that may be called, by name."""
        return {tool.name: tool.parameters for tool in self.callable if not tool.is_custom}

    @property
    def custom_names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.callable if tool.is_custom)


def read_tools(
    *,
    tools: Sequence[Tool] | None,
    max_tools: int,
    tool_choice: Any = None,
    parallel_tool_calls: bool | None = None,
    functions: Sequence[FunctionDefinition] | None = None,
    function_call: Any = None,
) -> ToolRequest | None:
    """Check everything a request says about tools; ``None`` when no tool may be called.

    Raises
    ------
    BadRequestError
        Names the field.
    """
    is_legacy = functions is not None or function_call is not None
    if is_legacy:
        for name, value in (("tools", tools), ("tool_choice", tool_choice)):
            if value is not None:
                raise BadRequestError(f"'functions' and 'function_call' exclude '{name}'.", param=name)
        list_name, choice_name = "functions", "function_call"
        tools = [Tool(type="function", function=function) for function in functions or ()]
        tool_choice = _modern_choice(function_call)
    else:
        list_name, choice_name = "tools", "tool_choice"
    offered = _offered(tools or (), list_name, max_tools)
    if not offered:
        if tool_choice not in (None, "none", "auto"):
            raise BadRequestError(f"'{choice_name}' needs '{list_name}'.", param=choice_name)
        if parallel_tool_calls is not None and tools is None:
            raise BadRequestError("'parallel_tool_calls' needs 'tools'.", param="parallel_tool_calls")
        return None
    demand, chosen, is_named = _read_choice(tool_choice, offered, choice_name)
    if demand == "none":
        return None
    return ToolRequest(
        offered=offered,
        callable=chosen,
        demand=demand,
        is_parallel=parallel_tool_calls is not False and not is_legacy and not is_named,
        is_named=is_named,
        is_legacy=is_legacy,
    )


def _offered(tools: Sequence[Tool], list_name: str, max_tools: int) -> tuple[OfferedTool, ...]:
    if len(tools) > max_tools:
        raise BadRequestError(
            f"'{list_name}' has {len(tools)} tools; the most allowed are {max_tools}.", param=list_name
        )
    offered: dict[str, OfferedTool] = {}
    for index, tool in enumerate(tools):
        path = f"{list_name}[{index}]"
        one = _one_offered(tool, path if list_name == "functions" else f"{path}.{tool.type}", path)
        if one.name in offered:
            raise BadRequestError(f"'{path}' has the name {one.name!r} of an earlier tool.", param=path)
        offered[one.name] = one
    return tuple(offered.values())


def _one_offered(tool: Tool, path: str, tool_path: str) -> OfferedTool:
    other = "custom" if tool.type == "function" else "function"
    if getattr(tool, other) is not None:
        raise BadRequestError(
            f"'{tool_path}.{other}' does not belong to the type '{tool.type}'.", param=f"{tool_path}.{other}"
        )
    definition = tool.function if tool.type == "function" else tool.custom
    if definition is None:
        raise BadRequestError(f"The field '{path}' is required.", param=path, code="missing_field")
    if not _NAME.fullmatch(definition.name):
        raise BadRequestError(
            f"'{path}.name' must have 1 to 64 of the characters a-z, A-Z, 0-9, _ and -.",
            param=f"{path}.name",
            code="invalid_value",
        )
    description = definition.description or ""
    if isinstance(definition, CustomDefinition):
        form = definition.format
        if form is not None and (form.type == "grammar") != (form.grammar is not None):
            raise BadRequestError(
                f"'{path}.format.grammar' belongs to the type 'grammar', and is required there.",
                param=f"{path}.format.grammar",
            )
        schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
        return OfferedTool(
            name=definition.name, description=description, parameters=schema, custom=definition, path=f"{path}.format"
        )
    return OfferedTool(
        name=definition.name,
        description=description,
        parameters=_parameters(definition.parameters, f"{path}.parameters"),
        is_strict=bool(definition.strict),
        path=f"{path}.parameters",
    )


def _parameters(given: Any, path: str) -> dict[str, Any]:
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise BadRequestError(f"'{path}' must be a JSON Schema, an object.", param=path, code="invalid_schema")
    if given.get("type", "object") != "object":
        raise BadRequestError(
            f"'{path}' must describe an object: 'type' must be 'object'.", param=f"{path}.type", code="invalid_schema"
        )
    schema: dict[str, Any] = {"type": "object", **given}
    if not (schema.keys() - {"type", "title", "description", "$schema"}) or schema.get("properties") == {}:
        # A tool without parameters is called with {}, not with whatever a model makes up.
        schema.setdefault("properties", {})
        schema.setdefault("additionalProperties", False)
    return schema


def _modern_choice(function_call: Any) -> Any:
    if isinstance(function_call, dict):
        return {"type": "function", "function": function_call}
    return function_call


def _read_choice(
    choice: Any, offered: Sequence[OfferedTool], path: str
) -> tuple[Demand, tuple[OfferedTool, ...], bool]:
    """What is demanded, the tools that may be called, and whether it is one certain tool."""
    if choice is None or choice == "auto":
        return "auto", tuple(offered), False
    if choice == "none":
        return "none", (), False
    if choice in ("required", "any") and path == "tool_choice":  # "any" is Mistral's word
        return "required", tuple(offered), False
    if not isinstance(choice, dict):
        raise BadRequestError(
            f"Invalid value for '{path}': {str(choice)[:100]!r}. It is 'none', 'auto', 'required', or an object that "
            "names a tool.",
            param=path,
            code="invalid_value",
        )
    kind = choice.get("type")
    if kind == "allowed_tools":
        return _allowed(choice, offered, path)
    if kind not in ("function", "custom"):
        raise BadRequestError(
            f"'{path}.type' must be 'function', 'custom' or 'allowed_tools'.",
            param=f"{path}.type",
            code="invalid_value",
        )
    _refuse_unknown(choice, {"type", kind}, path)
    tool = _named(choice, kind, offered, path)
    return "required", (tool,), True


def _allowed(
    choice: dict[str, Any], offered: Sequence[OfferedTool], path: str
) -> tuple[Demand, tuple[OfferedTool, ...], bool]:
    _refuse_unknown(choice, {"type", "allowed_tools"}, path)
    allowed = choice.get("allowed_tools")
    path = f"{path}.allowed_tools"
    if not isinstance(allowed, dict):
        raise BadRequestError(f"'{path}' must be an object with 'mode' and 'tools'.", param=path)
    _refuse_unknown(allowed, {"mode", "tools"}, path)
    mode, named = allowed.get("mode"), allowed.get("tools")
    if mode not in ("auto", "required"):
        raise BadRequestError(f"'{path}.mode' must be 'auto' or 'required'.", param=f"{path}.mode")
    if not isinstance(named, list) or not named:
        raise BadRequestError(f"'{path}.tools' must be a list that names tools.", param=f"{path}.tools")
    chosen: dict[str, OfferedTool] = {}
    for index, one in enumerate(named):
        place = f"{path}.tools[{index}]"
        if not isinstance(one, dict) or one.get("type") not in ("function", "custom"):
            raise BadRequestError(f"'{place}' must be an object of the type 'function' or 'custom'.", param=place)
        tool = _named(one, one["type"], offered, place)
        chosen[tool.name] = tool
    return ("auto" if mode == "auto" else "required"), tuple(chosen.values()), False


def _named(choice: dict[str, Any], kind: str, offered: Sequence[OfferedTool], path: str) -> OfferedTool:
    named = choice.get(kind)
    name = named.get("name") if isinstance(named, dict) else None
    if not isinstance(name, str):
        raise BadRequestError(f"The field '{path}.{kind}.name' is required.", param=f"{path}.{kind}.name")
    for tool in offered:
        if tool.name == name and tool.is_custom == (kind == "custom"):
            return tool
    raise BadRequestError(
        f"'{path}' names the tool {name[:100]!r}, which is not among those offered.", param=path, code="invalid_value"
    )


def _refuse_unknown(value: dict[str, Any], known: set[str], path: str) -> None:
    for name in value:
        if name not in known:
            raise BadRequestError(f"Unknown field '{path}.{name[:100]}'.", param=path, code="unknown_field")

"""The formats there are. A new one is a class and a line here."""

from __future__ import annotations

from server.tools.bare_json import JsonParser, Llama3JsonParser
from server.tools.harmony import HarmonyParser
from server.tools.hermes import HermesParser
from server.tools.parser import ToolCallParser
from server.tools.pythonic import PythonicParser
from server.tools.qwen3_coder import Qwen3CoderParser

FORMATS: tuple[type[ToolCallParser], ...] = (
    HarmonyParser,
    Qwen3CoderParser,
    HermesParser,
    PythonicParser,
    Llama3JsonParser,
    JsonParser,
)
"""In the order in which a chat template is asked: what is more particular comes first."""

ALIASES = {"qwen": "hermes", "gpt-oss": "harmony", "openai": "harmony", "llama3": "llama3_json", "generic": "json"}

TOOL_PARSERS: dict[str, type[ToolCallParser]] = {parser.name: parser for parser in FORMATS}


def tool_parser_names() -> list[str]:
    return sorted([*TOOL_PARSERS, *ALIASES])


def tool_parser(name: str) -> type[ToolCallParser]:
    """The format of that name.

    Raises
    ------
    ValueError
        Names the ones there are.
    """
    parser = TOOL_PARSERS.get(ALIASES.get(name, name))
    if parser is None:
        raise ValueError(f"there is no tool-call parser {name[:100]!r}; there are {', '.join(tool_parser_names())}")
    return parser


def knows_tools(template: str | None) -> bool:
    """Whether a chat template shows tools to its model."""
    return template is not None and "tools" in template


def recognise(template: str | None) -> type[ToolCallParser]:
    """The format that a chat template asks for; JSON in tags where it asks for none."""
    if template is None or not knows_tools(template):
        return HermesParser
    return next(parser for parser in FORMATS if parser.recognises(template))

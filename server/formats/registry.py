"""The formats there are. A new one is a class and a line here."""

from __future__ import annotations

from server.config import HttpConfig
from server.formats.answer_format import AnswerFormat, TaggedFormat, needs_words
from server.formats.harmony import HarmonyFormat, HarmonyParser
from server.reasoning import formats as reasoning_formats
from server.reasoning.formats import ReasoningFormat, reasoning_format
from server.text.tokenizer import Tokenizer
from server.tools.bare_json import JsonParser, Llama3JsonParser
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


def recognise(template: str | None) -> type[ToolCallParser]:
    """The format that a chat template asks for; JSON in tags where it asks for none."""
    if template is None or needs_words(template):
        return HermesParser
    return next(parser for parser in FORMATS if parser.recognises(template))


def answer_format(config: HttpConfig, template: str | None, tokenizer: Tokenizer) -> AnswerFormat:
    """How the served model writes its answers, by the settings; ``auto`` asks the chat template.

    Raises
    ------
    ValueError
        A setting names a parser that does not exist.
    """
    calls = recognise(template) if config.tool_call_parser == "auto" else tool_parser(config.tool_call_parser)
    thinking: ReasoningFormat | None = None
    if config.reasoning_parser == "auto":
        thinking = HarmonyFormat.MARKERS if calls is HarmonyParser else reasoning_formats.recognise(template)
    elif config.reasoning_parser != "off":
        thinking = reasoning_format(config.reasoning_parser)
    return format_of(thinking, calls, template, tokenizer)


def format_of(
    thinking: ReasoningFormat | None, calls: type[ToolCallParser], template: str | None, tokenizer: Tokenizer
) -> AnswerFormat:
    """The format of answers with these markers of thinking and calls in this form."""
    if thinking is HarmonyFormat.MARKERS:
        return HarmonyFormat(thinking, HarmonyParser, template, tokenizer)
    return TaggedFormat(thinking, calls, template, tokenizer)

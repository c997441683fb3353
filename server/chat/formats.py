"""How the served model calls tools and thinks: settled once, from the settings and its chat template."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from server.config import HttpConfig
from server.models.assets import ModelAssets
from server.reasoning import formats as reasoning_formats
from server.reasoning.formats import ReasoningFormat, reasoning_format
from server.reasoning.state import ThinkingState, thinking_state
from server.tokenizer import Tokenizer
from server.tools.parser import ToolCallParser
from server.tools.prompt import needs_words
from server.tools.registry import recognise, tool_parser


@dataclass(frozen=True)
class ChatFormats:
    """Of one model."""

    tool_parser: type[ToolCallParser]
    reasoning: ReasoningFormat | None
    tokenizer: Tokenizer
    template: str | None

    @property
    def tools_need_words(self) -> bool:
        """Whether the template knows no tools, so that messages have to tell of them."""
        return needs_words(self.template)

    @cached_property
    def shown_ids(self) -> frozenset[int]:
        """Special tokens whose spelling the parsers must see."""
        spellings = [*self.tool_parser.shown_tokens]
        if self.reasoning is not None:
            spellings += [self.reasoning.start, self.reasoning.end]
        if self.reads_harmony:
            spellings += tool_parser("harmony").shown_tokens
        ids = (self.tokenizer.control_ids.get(spelling) for spelling in spellings)
        return frozenset(token_id for token_id in ids if token_id is not None)

    @property
    def reads_harmony(self) -> bool:
        """Whether one parser reads thinking, answer and calls together."""
        return self.reasoning is not None and self.reasoning.is_harmony

    @cached_property
    def think_start_ids(self) -> tuple[int, ...]:
        """Token ids of the marker that begins thinking."""
        return () if self.reasoning is None else self._ids(self.reasoning.start)

    @cached_property
    def think_end_ids(self) -> tuple[int, ...]:
        """Token ids of the marker that ends thinking; the answer follows."""
        return () if self.reasoning is None else self._ids(self.reasoning.end)

    @cached_property
    def think_part_end_ids(self) -> tuple[int, ...]:
        """Token ids of the marker that ends thinking, whatever follows."""
        return () if self.reasoning is None else self._ids(self.reasoning.part_end or self.reasoning.end)

    def _ids(self, marker: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode_prompt(marker, add_special_tokens=False))

    @cached_property
    def _boundaries(self) -> tuple[str, ...]:
        markers = () if self.reasoning is None else (self.reasoning.start, self.reasoning.end)
        return tuple(one for one in self.tokenizer.control_ids if one not in markers)

    def thinking_state(self, prompt: str) -> ThinkingState:
        """Whether an answer to the rendered ``prompt`` begins with thinking."""
        if self.reasoning is None:
            return ThinkingState.CLOSED
        return thinking_state(prompt, self.reasoning, self._boundaries)

    def opening(self, prompt: str) -> str:
        """What a generation prompt that leaves thinking open is continued with, so that it does not."""
        form = self.reasoning
        if form is None or not form.is_opened_here or self.thinking_state(prompt) is not ThinkingState.UNSAID:
            return ""
        has_switch = self.template is not None and "enable_thinking" in self.template
        return f"{form.start}\n" if has_switch or form.name == "deepseek-r1" else ""


def chat_formats(config: HttpConfig, assets: ModelAssets, tokenizer: Tokenizer) -> ChatFormats:
    """Read the settings ``tool_call_parser`` and ``reasoning_parser``; ``auto`` asks the chat template.

    Raises
    ------
    ValueError
        A setting names a parser that does not exist.
    """
    template = assets.chat_template
    tools = recognise(template) if config.tool_call_parser == "auto" else tool_parser(config.tool_call_parser)
    reasoning: ReasoningFormat | None = None
    if config.reasoning_parser == "auto":
        reasoning = reasoning_formats.recognise(template)
    elif config.reasoning_parser != "off":
        reasoning = reasoning_format(config.reasoning_parser)
    if tools.name == "harmony" and config.reasoning_parser == "auto":
        reasoning = reasoning_format("gpt-oss")
    return ChatFormats(tools, reasoning, tokenizer, template)

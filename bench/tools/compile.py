"""Milliseconds from a request's tools to a grammar that can be served, with nothing compiled before, and of its masks.

``python -m bench.tools.compile`` measures 20 tools whose strings have ``maxLength`` 500 and the 128 of
:mod:`bench.tools.agent_tools`, in each format: through the pool of compile processes as a server does it, and once more
alone with the CPU time of a mask in free text and in calls.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from concurrent.futures import Future
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.tools.agent_tools import agent_tools
from constrained.compile.walk import legal_token_ids
from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.base import BaseGrammarObject, InvalidGrammarObject, create_grammar_backend
from constrained.environment import GrammarEnvironment
from constrained.spec import GrammarSpec
from constrained.vocabulary import Vocabulary
from server.formats.harmony import HarmonyParser
from server.formats.registry import TOOL_PARSERS, tool_parser
from server.models.resolve import resolve
from server.tools.constraint import tool_constraint
from server.tools.definitions import Tool, read_tools


def bounded_tools(count: int = 20) -> list[dict[str, Any]]:
    """Tools of about a kilobyte with strings of up to 500 characters, each with names of its own."""
    tools = []
    for index in range(count):
        text = {"type": "string", "maxLength": 500, "description": "Free text. " * 20}
        inner = {"type": "object", "properties": {f"reason_{index}": text}, "required": [f"reason_{index}"]}
        properties = {f"note_{index}": text, "mode": {"enum": ["fast", "slow"]}, "more": inner}
        parameters = {"type": "object", "properties": properties, "required": [f"note_{index}"]}
        tools.append({"type": "function", "function": {"name": f"tool_{index}", "parameters": parameters}})
    return tools


def tools_spec(tools: list[dict[str, Any]], parser: str, choice: str) -> GrammarSpec:
    """What a request with these tools is compiled from."""
    request = read_tools(
        tools=[Tool.model_validate(tool) for tool in tools],
        tool_choice=choice,
        parallel_tool_calls=None,
        functions=None,
        function_call=None,
        max_tools=1024,
    )
    assert request is not None
    constraint = tool_constraint(
        request,
        tool_parser(parser),
        token_ids={spelling: 3 + index for index, spelling in enumerate(HarmonyParser.shown_tokens)},
        answer=None,
        answer_field="response_format",
        lenient=False,
        backend=None,
        max_bytes=4_000_000,
    )
    assert constraint.spec is not None
    return constraint.spec


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m bench.tools.compile", description=__doc__)
    options.add_argument("--parsers", nargs="+", default=sorted(TOOL_PARSERS))
    options.add_argument("--choices", nargs="+", default=["auto", "required"])
    arguments = options.parse_args()
    torch.set_num_threads(1)
    assets = resolve(None, load_format="auto")
    vocabulary = Vocabulary.from_tokenizer_json(assets.tokenizer_json)
    environment = GrammarEnvironment(vocabulary, len(vocabulary), assets.eos_token_ids)
    table = Table("tools", "bytes", "format", "tool_choice", "engine", "ready, ms", "mask, CPU µs", "p99", "max")
    for tools in (bounded_tools(), agent_tools()):
        for parser in arguments.parsers:
            for choice in arguments.choices:
                spec = tools_spec(tools, parser, choice)
                ready = ready_milliseconds(environment, spec)
                compiled = AutoGrammarBackend(environment).compile(spec)
                times = mask_microseconds(compiled.grammar)
                figures = (statistics.fmean(times), times[len(times) * 99 // 100], times[-1])
                size = len(json.dumps(tools))
                shown = (f"{ready:.0f}", *(f"{figure:.0f}" for figure in figures))
                table.add_row(str(len(tools)), f"{size:,}", parser, choice, compiled.backend, *shown)
    Console().print(table)


def ready_milliseconds(environment: GrammarEnvironment, spec: GrammarSpec) -> float:
    """From asking a server's backend to the object in hand; its processes are started and know no grammar."""
    backend = create_grammar_backend(environment)
    assert backend is not None
    try:
        _ready(backend.get_cached_or_future_value(GrammarSpec(kind="regex", value="warm"))[0])
        started = time.perf_counter()
        grammar = _ready(backend.get_cached_or_future_value(spec)[0])
        if isinstance(grammar, InvalidGrammarObject):
            raise grammar.error
        return (time.perf_counter() - started) * 1e3
    finally:
        backend.shutdown()


def _ready(value: BaseGrammarObject | Future[BaseGrammarObject]) -> BaseGrammarObject:
    return value.result() if isinstance(value, Future) else value


def mask_microseconds(grammar: BaseGrammarObject, num_texts: int = 20, num_steps: int = 100) -> list[float]:
    """Sorted CPU times of masks along random legal texts, first visits to a state with them."""
    choose = random.Random(0)
    mask = grammar.allocate_vocab_mask(grammar.environment.vocab_size, 1)
    times = []
    for _ in range(num_texts):
        state = grammar.copy()
        for _ in range(num_steps):
            started = time.thread_time()
            state.fill_vocab_mask(mask, 0)
            times.append((time.thread_time() - started) * 1e6)
            if state.is_terminated() or not len(legal := legal_token_ids(state)):
                break
            state.accept_token(int(choose.choice(legal)))
    return sorted(times)


if __name__ == "__main__":
    main()

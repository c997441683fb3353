"""What reading calls and thinking out of an answer costs a token, and nothing else: no server, no model.

``python -m bench.tools.parsing``
"""

from __future__ import annotations

import time
from collections.abc import Callable

from server.answer.events import Event
from server.formats.registry import TOOL_PARSERS, tool_parser
from server.reasoning.formats import reasoning_format
from server.reasoning.splitter import ReasoningSplitter
from server.reasoning.state import ThinkingState

_TOOLS = {
    "save": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"],
    }
}
_WORDS = "The river runs past the old mill, and if a < b then nobody minds [much].\n" * 40
_LONG = "line of a file\\n" * 200
_ARGUMENTS = f'{{"path": "a.txt", "content": "{_LONG}"}}'
_CALLS = {
    "hermes": f'<tool_call>\n{{"name": "save", "arguments": {_ARGUMENTS}}}\n</tool_call>',
    "json": f'{{"name": "save", "arguments": {_ARGUMENTS}}}',
    "llama3_json": f'{{"name": "save", "parameters": {_ARGUMENTS}}}',
    "pythonic": f'[save(path="a.txt", content="{_LONG}")]',
    "qwen3_coder": "<tool_call>\n<function=save>\n<parameter=path>\na.txt\n</parameter>\n<parameter=content>\n"
    + _LONG.replace("\\n", "\n")
    + "\n</parameter>\n</function>\n</tool_call>",
    "harmony": f"<|channel|>commentary to=functions.save<|constrain|>json<|message|>{_ARGUMENTS}<|call|>",
}
_CHARACTERS_PER_TOKEN = 4
_REPEATS = 7

Add = Callable[[str], list[Event]]


def microseconds_per_token(make_add: Callable[[], Add], text: str) -> float:
    """Of the best of several runs; a token has four characters."""
    pieces = [text[i : i + _CHARACTERS_PER_TOKEN] for i in range(0, len(text), _CHARACTERS_PER_TOKEN)]
    best = float("inf")
    for _ in range(_REPEATS):
        add = make_add()
        begin = time.perf_counter()
        for piece in pieces:
            add(piece)
        best = min(best, time.perf_counter() - begin)
    return best / len(pieces) * 1e6


def main() -> None:
    print(f"{'parser':<14}{'words':>10}{'call':>10}{'call, not constrained':>24}   µs a token")
    for name in sorted(TOOL_PARSERS):

        def constrained(name: str = name) -> Add:
            return tool_parser(name)(_TOOLS, is_constrained=True).add

        def free(name: str = name) -> Add:
            return tool_parser(name)(_TOOLS, is_constrained=False).add

        call = _CALLS[name]
        words, eager, late = (
            microseconds_per_token(constrained, _WORDS),
            microseconds_per_token(constrained, call),
            microseconds_per_token(free, call),
        )
        print(f"{name:<14}{words:>10.2f}{eager:>10.2f}{late:>24.2f}")

    def splitter() -> Add:
        return ReasoningSplitter(reasoning_format("qwen3"), ThinkingState.OPEN).add

    print(f"{'thinking':<14}{microseconds_per_token(splitter, _WORDS):>10.2f}")


if __name__ == "__main__":
    main()

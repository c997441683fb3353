"""Share of a served model's required calls whose arguments parse and fit their schema, sampled at temperature 1.

``python -m bench.tools.validity --base-url http://127.0.0.1:30000 --calls 200``
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]

SCHEMAS: dict[str, dict[str, Any]] = {
    "add_task": {
        "type": "object",
        "properties": {
            "title": {"type": "string", "minLength": 1, "maxLength": 40},
            "priority": {"enum": ["low", "normal", "high"]},
            "hours": {"type": "number", "minimum": 0, "maximum": 24},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 10}, "maxItems": 3},
        },
        "required": ["title", "priority"],
    },
    "find_flight": {
        "type": "object",
        "properties": {
            "origin": {"type": "string", "pattern": "^[A-Z]{3}$"},
            "destination": {"type": "string", "pattern": "^[A-Z]{3}$"},
            "passengers": {
                "type": "object",
                "properties": {"adults": {"type": "integer", "minimum": 1, "maximum": 9}},
                "required": ["adults"],
            },
        },
        "required": ["origin", "destination", "passengers"],
    },
    "lamp_on": {"type": "object", "properties": {}},
}
PROMPTS = [
    "Remind me to water the plants, it is urgent.",
    "Two of us want to fly from Oslo to Rome.",
    "It is dark in here.",
    "Write a poem about rivers.",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:30000")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=400)
    options = parser.parse_args()
    begin = time.perf_counter()
    outcomes: dict[str, int] = {"valid": 0, "cut off": 0, "invalid": 0}
    with httpx.Client(base_url=options.base_url, timeout=600) as client:
        for seed in range(options.calls):
            for outcome in _outcomes(client, seed, options.max_tokens):
                outcomes[outcome] += 1
    for outcome, count in outcomes.items():
        print(f"{outcome:<10}{count:>6}")
    print(f"{options.calls} requests in {time.perf_counter() - begin:.0f} s")


def _outcomes(client: httpx.Client, seed: int, max_tokens: int) -> list[str]:
    """One for each call of a request."""
    tools = [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in SCHEMAS.items()]
    body = {
        "messages": [{"role": "user", "content": PROMPTS[seed % len(PROMPTS)]}],
        "tools": tools,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 1,
        "seed": seed,
        "max_tokens": max_tokens,
    }
    answer = client.post("/v1/chat/completions", json=body)
    answer.raise_for_status()
    choice = answer.json()["choices"][0]
    if choice["finish_reason"] == "length":
        return ["cut off"]
    return [_outcome(call["function"]) for call in choice["message"].get("tool_calls") or [{"function": {}}]]


def _outcome(function: dict[str, Any]) -> str:
    try:
        jsonschema.validate(json.loads(function["arguments"]), SCHEMAS[function["name"]])
    except (KeyError, ValueError, jsonschema.ValidationError):
        return "invalid"
    return "valid"


if __name__ == "__main__":
    main()

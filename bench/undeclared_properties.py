"""Counts what a small model makes of schemas that declare properties and leave everything else unsaid.

``python -m bench.undeclared_properties --url http://127.0.0.1:30000`` asks a running server for 20 schemas without
``required``, ``strict`` and ``additionalProperties``, and prints how many answers end, and how many hold a declared
key. Start the server with ``--json-undeclared-properties closed`` or ``open`` to compare.
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from typing import Any

_STRING, _INTEGER, _NUMBER, _BOOLEAN = ({"type": name} for name in ("string", "integer", "number", "boolean"))
_QUESTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("What is 6 times 7?", {"answer": _INTEGER}),
    ("What is the capital of France?", {"capital": _STRING}),
    ("Is the sky green?", {"is_true": _BOOLEAN}),
    ("Ada is 36 and lives in Lyon.", {"name": _STRING, "age": _INTEGER, "city": _STRING}),
    ("Is this review positive? 'I loved it.'", {"sentiment": {"enum": ["positive", "negative"]}}),
    ("Name three colours.", {"colours": {"type": "array", "items": _STRING, "maxItems": 3}}),
    ("How far is the moon, in km?", {"distance": _NUMBER, "unit": _STRING}),
    ("Translate 'dog' into German.", {"translation": _STRING}),
    ("Summarise: the meeting was moved to Monday.", {"summary": _STRING}),
    ("Who wrote Hamlet?", {"author": _STRING, "year": _INTEGER}),
    ("Weather in Oslo: 3 degrees, rain.", {"city": _STRING, "temperature": _NUMBER, "rain": _BOOLEAN}),
    ("Give me the email of Bob: bob@example.com", {"email": _STRING}),
    ("Order: 2 apples for 3 euros.", {"item": _STRING, "quantity": _INTEGER, "price": _NUMBER}),
    ("Is 17 prime?", {"prime": _BOOLEAN, "reason": _STRING}),
    ("Bob lives in Main Street 5, Berlin.", {"address": {"type": "object", "properties": {"city": _STRING}}}),
    ("Rate this film from 1 to 5: it was fine.", {"rating": {"type": "integer", "minimum": 1, "maximum": 5}}),
    ("Which language is 'bonjour'?", {"language": _STRING, "confidence": _NUMBER}),
    ("List the days of the weekend.", {"days": {"type": "array", "items": _STRING}}),
    ("Write a title for a story about a fox.", {"title": _STRING}),
    ("Convert 1 hour to minutes.", {"minutes": _INTEGER}),
)


def main(argv: list[str] | None = None) -> int:
    """Ask, and print one line of counts."""
    parser = argparse.ArgumentParser(prog="bench.undeclared_properties", description=__doc__)
    parser.add_argument("--url", required=True, help="a running server")
    parser.add_argument("--max-tokens", type=int, default=150)
    parser.add_argument("--show", action="store_true", help="print the answers")
    options = parser.parse_args(argv)
    ended = declared = both = tokens = 0
    for question, properties in _QUESTIONS:
        text, reason, length = _ask(options.url, question, properties, options.max_tokens)
        has_key = any(json.dumps(name) + ":" in text.replace('" :', '":') for name in properties)
        ended, declared, both = ended + (reason == "stop"), declared + has_key, both + (has_key and reason == "stop")
        tokens += length
        if options.show:
            print(reason, text[:200])
    count = len(_QUESTIONS)
    print(f"ended {ended}/{count}; with a declared key {declared}/{count}; both {both}/{count}; {tokens} tokens")
    return 0


def _ask(url: str, question: str, properties: dict[str, Any], max_tokens: int) -> tuple[str, str, int]:
    schema = {"type": "object", "properties": properties}
    body = {
        "messages": [{"role": "user", "content": f"{question} Answer in JSON."}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
    }
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as reply:
        answer = json.load(reply)
    choice = answer["choices"][0]
    return choice["message"]["content"], choice["finish_reason"], answer["usage"]["completion_tokens"]


if __name__ == "__main__":
    raise SystemExit(main())

"""Pieces of xgrammar structural tags: how an answer's grammar is put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Format = dict[str, Any]
"""One ``format`` of a structural tag."""

MAX_PARALLEL_CALLS = 32
"""Most calls in one answer."""

_SPELLED_TOKEN = "spelled_token"

ANY_TEXT: Format = {"type": "any_text"}


def constant(text: str) -> Format:
    return {"type": "const_string", "value": text}


def token(spelling: str) -> Format:
    """A special token, by its spelling; :func:`resolve_tokens` makes an id of it."""
    return {"type": _SPELLED_TOKEN, "token": spelling}


def tag(begin: str | Format, content: Format, end: str | Format) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def either(elements: Sequence[Format]) -> Format:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}


def optional(content: Format) -> Format:
    return {"type": "optional", "content": content}


def starred(content: Format) -> Format:
    return {"type": "star", "content": content}


def repeated(content: Format, most: int) -> Format:
    """None to ``most`` of ``content``."""
    return {"type": "repeat", "min": 0, "max": most, "content": content}


def calls_in_a_row(calls: Sequence[Format], separator: str, most: int) -> Format:
    """Calls and nothing else: at least one."""
    one = either(calls)
    return one if most == 1 else sequence(one, repeated(sequence(constant(separator), one), most - 1))


def calls_among_words(calls: Sequence[Format], triggers: Sequence[str], most: int) -> Format:
    """Words with calls in between, each of which begins with a trigger; no other text has a trigger in it.

    A single call is the end of the answer, where no more than one is wanted.
    """
    words = {**ANY_TEXT, "excludes": list(triggers)}
    one = either(calls)
    if most == 1:
        return sequence(words, optional(one))
    return sequence(repeated(sequence(words, one), most), words)


def resolve_tokens(value: Any, token_ids: Mapping[str, int]) -> Any:
    """A format with the ids of special tokens in place of their spellings.

    Raises
    ------
    KeyError
        The tokenizer has no such special token.
    """
    if isinstance(value, list):
        return [resolve_tokens(one, token_ids) for one in value]
    if not isinstance(value, dict) or value.get("type") == "json_schema":
        return value
    if value.get("type") == _SPELLED_TOKEN:
        return {"type": "token", "token": token_ids[value["token"]]}
    return {name: resolve_tokens(one, token_ids) for name, one in value.items()}

"""Log-probabilities in the forms of the two completions endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from constrained.vocabulary import Vocabulary
from scheduler.messages import TokenLogprob
from server.generation.choices import PlacedLogprob

_LOWEST = -9999.0  # stands for "never": JSON has no infinity


def chat_logprobs(
    vocabulary: Vocabulary, placed: Sequence[PlacedLogprob], *, num_top: int, skip_special_tokens: bool
) -> dict[str, Any]:
    """``choices[].logprobs`` of a chat answer.

    The joined ``bytes`` are the content's UTF-8: a special token that the content does not show has none, and one that
    a stop string cuts in two has those before it.
    """
    return {
        "content": [
            {
                **_chat_token(
                    vocabulary,
                    item.entry.token_id,
                    item.entry.logprob,
                    hide_special=skip_special_tokens,
                    num_bytes=item.num_shown_bytes,
                ),
                "top_logprobs": [
                    _chat_token(vocabulary, top.token_id, top.logprob, hide_special=False)
                    for top in item.entry.top[:num_top]
                ],
            }
            for item in placed
        ],
        "refusal": None,
    }


def completion_logprobs(
    vocabulary: Vocabulary, entries: Sequence[PlacedLogprob | tuple[int, int]]
) -> dict[str, list[Any]]:
    """``choices[].logprobs`` of a text completion.

    Parameters
    ----------
    entries
        Log-probabilities in text order; ``(token id, text offset)`` for a token without any (a prompt's first).
    """
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for item in entries:
        if isinstance(item, PlacedLogprob):
            token, logprob = completion_token(vocabulary, item.entry.token_id), finite(item.entry.logprob)
            tokens.append(token)
            token_logprobs.append(logprob)
            top_logprobs.append(_completion_top(vocabulary, item.entry, token, logprob))
            offsets.append(item.text_offset)
        else:
            tokens.append(completion_token(vocabulary, item[0]))
            token_logprobs.append(None)
            top_logprobs.append(None)
            offsets.append(item[1])
    return {
        "tokens": tokens,
        "token_logprobs": token_logprobs,
        "top_logprobs": top_logprobs,
        "text_offset": offsets,
    }


def completion_token(vocabulary: Vocabulary, token_id: int) -> str:
    """A token's text; ``bytes:\\xe2\\x82`` where it is a part of a character, so that such tokens stay apart."""
    spelled = token_bytes(vocabulary, token_id)
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def token_bytes(vocabulary: Vocabulary, token_id: int) -> bytes:
    """A token's spelling; nothing for ids the tokenizer does not know (a padded vocabulary has some)."""
    return vocabulary.token_bytes[token_id] if token_id < len(vocabulary) else b""


def finite(logprob: float) -> float:
    return max(logprob, _LOWEST)


def _chat_token(
    vocabulary: Vocabulary, token_id: int, logprob: float, *, hide_special: bool, num_bytes: int | None = None
) -> dict[str, Any]:
    spelled = token_bytes(vocabulary, token_id)
    is_hidden = hide_special and token_id in vocabulary.special_ids
    return {
        "token": spelled.decode("utf-8", "replace"),
        "logprob": finite(logprob),
        "bytes": [] if is_hidden else list(spelled[:num_bytes]),
    }


def _completion_top(vocabulary: Vocabulary, entry: TokenLogprob, token: str, logprob: float) -> dict[str, float]:
    top = {completion_token(vocabulary, item.token_id): finite(item.logprob) for item in reversed(entry.top)}
    most_likely_first = dict(reversed(top.items()))
    most_likely_first.setdefault(token, logprob)
    return most_likely_first

"""Forced text in the tokens a tokenizer would choose, joined to tokens that are already there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cachetools import LRUCache

_SPELLINGS_KEPT = 4096


class Encoding(Protocol):
    @property
    def ids(self) -> list[int]: ...


class Encoder(Protocol):
    """A ``tokenizers.Tokenizer``."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Encoding: ...


class Retokenizer:
    """Spells bytes as tokens behind committed ones.

    Parameters
    ----------
    encoder
        The model's tokenizer.
    token_bytes
        Bytes of each token id; empty for special tokens, which nothing is spelled across.
    """

    TAIL_TOKENS = 4
    """Committed tokens that are spelled again together with the forced text. Merges reach back one word at most, and
    one that reached further would only cost a wrong guess."""

    def __init__(self, encoder: Encoder, token_bytes: Sequence[bytes]) -> None:
        self._encoder = encoder
        self._token_bytes = token_bytes
        self._spellings: LRUCache[tuple[tuple[int, ...], bytes], tuple[int, ...]] = LRUCache(_SPELLINGS_KEPT)

    def spell(self, committed: Sequence[int], forced: bytes) -> tuple[int, ...]:
        """Tokens whose bytes are ``forced`` (less an unfinished character at its end), or none.

        The text is encoded together with the last committed tokens, so that a token which merges over the boundary is
        seen; the result counts only if it begins with those tokens. Where it never does, for the tokens there are not
        the tokenizer's own choice, the forced text is spelled alone.
        """
        tail = self._tail(committed)
        key = (tail, forced)
        tokens = self._spellings.get(key)
        if tokens is None:
            tokens = self._spellings[key] = self._spell(tail, forced)
        return tokens

    def _tail(self, committed: Sequence[int]) -> tuple[int, ...]:
        """The last committed tokens behind the last special one."""
        tail = tuple(committed[-self.TAIL_TOKENS :])
        for index in range(len(tail) - 1, -1, -1):
            if not self._bytes(tail[index]):
                return tail[index + 1 :]
        return tail

    def _spell(self, tail: tuple[int, ...], forced: bytes) -> tuple[int, ...]:
        for begin in range(len(tail) + 1):
            kept = tail[begin:]
            before = b"".join(self._bytes(token) for token in kept)
            text = _whole_characters(before + forced)
            if text is None:
                continue  # begins inside a character
            num_forced = len(text.encode()) - len(before)
            if num_forced <= 0:
                return ()
            tokens = self._encoder.encode(text, add_special_tokens=False).ids
            split = self._split(tokens, num_forced)
            # A tokenizer may mark the beginning of a text, so the first token is an anchor that need not agree.
            if split == len(kept) and tuple(tokens[1:split]) == kept[1:]:
                spelled = tuple(tokens[split:])
                if b"".join(self._bytes(token) for token in spelled) == forced[:num_forced]:
                    return spelled
        return ()

    def _split(self, tokens: Sequence[int], num_bytes: int) -> int | None:
        """Index from where the tokens have ``num_bytes`` bytes; ``None`` where a token lies across the boundary."""
        for index in range(len(tokens) - 1, -1, -1):
            num_bytes -= len(self._bytes(tokens[index]))
            if num_bytes <= 0:
                return index if num_bytes == 0 else None
        return None

    def _bytes(self, token: int) -> bytes:
        return self._token_bytes[token] if 0 <= token < len(self._token_bytes) else b""


def _whole_characters(data: bytes) -> str | None:
    """``data`` as text without an unfinished character at its end; ``None`` if anything else is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        is_unfinished = error.reason == "unexpected end of data" and error.end == len(data)
        return data[: error.start].decode() if is_unfinished else None

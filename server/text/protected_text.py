"""Keeps text that comes from a request from turning into control tokens.

A chat template writes control tokens (``<|im_end|>``) between the texts of messages, and the tokenizer then parses the
whole. A message that spells a control token would end its own turn and open another speaker's. So every such spelling
in a request's text is broken by a mark before the template runs, and the marked stretch is encoded as plain text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from typing import Any

_FIRST_PRIVATE, _NUM_PRIVATE = 0xE000, 6400  # the Unicode private use area: no text of anyone's, no white space


class ProtectedText:
    """Marks and unmarks spellings of special tokens. The mark is random, so that no request can bring its own."""

    def __init__(self, spellings: Iterable[str]) -> None:
        self.mark = "".join(chr(_FIRST_PRIVATE + secrets.randbelow(_NUM_PRIVATE)) for _ in range(6))
        # One character is no spelling that could be broken in two; no known tokenizer has such a special token.
        breakable = sorted((s for s in spellings if len(s) > 1), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, breakable))) if breakable else None

    def protect(self, value: Any) -> Any:
        """``value`` with every spelling in its strings broken; dicts and lists are copied, all else is kept."""
        if isinstance(value, str):
            return self._protect_string(value)
        if isinstance(value, dict):
            return {self._protect_string(key): self.protect(child) for key, child in value.items()}
        if isinstance(value, list):
            return [self.protect(child) for child in value]
        return value

    def has_marks(self, text: str) -> bool:
        return self.mark in text

    def unmark(self, text: str) -> str:
        return text.replace(self.mark, "")

    def _protect_string(self, text: str) -> str:
        if self._pattern is None or self._pattern.search(text) is None:
            return text
        # Spellings may overlap (`<|a<|b|>`): break again until none is left.
        while self._pattern.search(text) is not None:
            text = self._pattern.sub(lambda match: match.group()[0] + self.mark + match.group()[1:], text)
        return text

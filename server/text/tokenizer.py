"""Text to token ids and back, on the ``tokenizers`` library alone: nothing here imports transformers or torch."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from tokenizers import Tokenizer as HuggingFaceTokenizer

from constrained.vocabulary import Vocabulary
from server.models.assets import ModelAssets
from server.text.protected_text import ProtectedText

_LONG_TEXT = (
    4096  # characters; from here on encoding goes to a thread (it gives up the GIL), below that it is cheaper not to
)

_Result = TypeVar("_Result")


class Tokenizer:
    """A model's tokenizer.

    Parameters
    ----------
    assets
        Names the ``tokenizer.json`` and says whether a plain prompt begins with the BOS token.
    """

    def __init__(self, assets: ModelAssets) -> None:
        self._path: Path = assets.tokenizer_json
        self._tokenizer = _load(self._path)
        self._plain_tokenizer: HuggingFaceTokenizer | None = None
        self._plain_lock = threading.Lock()
        self.vocabulary = Vocabulary.from_tokenizer_json(self._path)
        self._longest_token = max(map(len, self.vocabulary.token_bytes), default=1)
        self._may_shorten = self._tokenizer.normalizer is not None
        bos_id = None if assets.bos_token is None else self._tokenizer.token_to_id(assets.bos_token)
        self._prefix: list[int] = [bos_id] if assets.add_bos and bos_id is not None else []
        self._control_ids = {
            token.content: token_id
            for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special and token.content
        }
        self.protected_text = ProtectedText(self._control_ids)
        spellings = sorted(self._control_ids, key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, spellings))) if spellings else None

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of the number of tokens of ``text``, without encoding it."""
        # A normalizer can compose characters, so that fewer bytes are left: at most a few to one.
        num_bytes = len(text) // 4 if self._may_shorten else len(text.encode("utf-8", "surrogatepass"))
        return num_bytes // self._longest_token

    def encode_prompt(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a plain prompt; spellings of special tokens in it become those tokens."""
        token_ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if add_special_tokens and token_ids[: len(self._prefix)] != self._prefix:
            return self._prefix + token_ids
        return token_ids

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of text in which spellings of special tokens are text like any other."""
        token_ids: list[int] = self._plain().encode(text, add_special_tokens=False).ids
        return token_ids

    def encode_rendered(self, text: str) -> list[int]:
        """Token ids of a rendered chat template.

        Special tokens the template wrote are parsed. Where a message spells one (marked by
        :class:`~server.text.protected_text.ProtectedText`), the stretch between two real ones is encoded as plain text.
        """
        if not self.protected_text.has_marks(text) or self._control_pattern is None:
            return self.encode_prompt(text, add_special_tokens=False)
        token_ids: list[int] = []
        position = 0
        for match in self._control_pattern.finditer(text):
            token_ids += self._encode_stretch(text[position : match.start()])
            token_ids.append(self._control_ids[match.group()])
            position = match.end()
        return token_ids + self._encode_stretch(text[position:])

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Ids of the special tokens, by their spelling."""
        return self._control_ids

    async def run(self, function: Callable[[str], _Result], text: str) -> _Result:
        """Call ``function(text)``, in a thread when the text is long enough to hold up other requests."""
        if len(text) < _LONG_TEXT:
            return function(text)
        return await asyncio.to_thread(function, text)

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; ill-formed bytes become U+FFFD."""
        table = self.vocabulary.visible_bytes if skip_special_tokens else self.vocabulary.token_bytes
        size = len(table)
        return b"".join(table[i] if i < size else b"" for i in token_ids).decode("utf-8", "replace")

    def _encode_stretch(self, text: str) -> list[int]:
        if not text:
            return []
        if self.protected_text.has_marks(text):
            return self.encode_plain(self.protected_text.unmark(text))
        return self.encode_prompt(text, add_special_tokens=False)

    def _plain(self) -> HuggingFaceTokenizer:
        # A second instance: the switch is a property of the whole tokenizer, and threads encode at the same time.
        with self._plain_lock:
            if self._plain_tokenizer is None:
                self._plain_tokenizer = _load(self._path)
                self._plain_tokenizer.encode_special_tokens = True
            return self._plain_tokenizer


def _load(path: Path) -> HuggingFaceTokenizer:
    tokenizer = HuggingFaceTokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer

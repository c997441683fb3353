"""The prompt in front of the answer, with its tokens' log-probabilities when those are asked for."""

from __future__ import annotations

import codecs

from scheduler.messages import PromptLogprobs
from server.generation.choices import PlacedLogprob
from server.request.description import Prompt
from server.text.tokenizer import Tokenizer


class Echo:
    """One prompt's echo."""

    def __init__(self, prompt: Prompt, tokenizer: Tokenizer) -> None:
        self.text = prompt.text
        self.entries: list[PlacedLogprob | tuple[int, int]] = []
        self._prompt = prompt
        self._table = tokenizer.vocabulary.visible_bytes

    def place(self, message: PromptLogprobs) -> None:
        """Put the log-probabilities at their places in the text."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        offset = 0
        self.entries = []
        for token_id, entry in zip(self._prompt.token_ids, message.logprobs, strict=True):
            self.entries.append((token_id, offset) if entry is None else PlacedLogprob(entry, offset))
            offset += len(decoder.decode(self._table[token_id] if token_id < len(self._table) else b""))

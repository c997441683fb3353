"""One choice of an answer as its tokens come: text, log-probabilities and token ids that may be shown."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from constrained.vocabulary import Vocabulary
from scheduler.messages import ChoiceOutput, Finish, TokenLogprob
from server.text.detokenizer import make_detokenizer


@dataclass(frozen=True)
class PlacedLogprob:
    """A token's log-probability and where in the text, in characters, it begins."""

    entry: TokenLogprob
    text_offset: int
    num_shown_bytes: int | None = None
    """How many of its bytes stand before a stop string that begins inside the token; ``None``: all."""


@dataclass(slots=True)
class ChoiceDelta:
    """What one message of the scheduler adds to a choice."""

    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[PlacedLogprob] = ()
    finish: Finish | None = None


class ChoiceAssembler:
    """Turns a choice's outputs into deltas.

    Joined deltas are the same however the tokens were spread over messages, so a streamed answer equals the
    unstreamed one.

    Parameters
    ----------
    text_offset
        Characters of the text before the first token (an echoed prompt).
    shown_ids
        Special tokens to show even where the others are skipped.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        skip_special_tokens: bool,
        text_offset: int = 0,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._detokenizer = make_detokenizer(vocabulary, skip_special_tokens=skip_special_tokens, shown_ids=shown_ids)
        self._logprobs = _LogprobQueue(vocabulary, skip_special_tokens=skip_special_tokens, text_offset=text_offset)
        self.finish: Finish | None = None

    def add(self, output: ChoiceOutput) -> ChoiceDelta:
        """What ``output`` makes visible."""
        detokenizer = self._detokenizer
        finish = output.finish
        if finish is None:
            text = detokenizer.add(output.token_ids, output.held_bytes)
        else:
            self.finish = finish
            text = detokenizer.finish(output.token_ids, finish.num_bytes)
        if output.logprobs is None:
            return ChoiceDelta(text, output.token_ids, (), finish)
        self._logprobs.push(output.logprobs)
        released = self._logprobs.release(detokenizer.num_released, is_end=finish is not None)
        return ChoiceDelta(text, output.token_ids, released, finish)


class _LogprobQueue:
    """Holds a token's log-probability back as long as its text is held back; drops it when its text is cut off."""

    def __init__(self, vocabulary: Vocabulary, *, skip_special_tokens: bool, text_offset: int) -> None:
        self._counted = vocabulary.visible_bytes
        self._shown = vocabulary.visible_bytes if skip_special_tokens else vocabulary.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = text_offset
        self._num_bytes = 0
        self._pending: deque[tuple[int, int, PlacedLogprob]] = deque()

    def push(self, entries: Sequence[TokenLogprob]) -> None:
        for entry in entries:
            in_range = entry.token_id < len(self._counted)
            counted = self._counted[entry.token_id] if in_range else b""
            self._pending.append((self._num_bytes, len(counted), PlacedLogprob(entry, self._num_chars)))
            self._num_bytes += len(counted)
            self._num_chars += len(self._decoder.decode(self._shown[entry.token_id] if in_range else b""))

    def release(self, num_released: int, *, is_end: bool) -> list[PlacedLogprob]:
        """Entries of tokens that are shown whole; at the end also of one that a stop string cuts in two."""
        released = []
        while self._pending:
            start, length, placed = self._pending[0]
            num_shown = min(num_released - start, length)
            if num_shown < length and not (is_end and num_shown > 0):
                break
            self._pending.popleft()
            released.append(placed if num_shown == length else replace(placed, num_shown_bytes=num_shown))
        return released


@dataclass(slots=True)
class CollectedChoice:
    """A finished choice of an unstreamed answer."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PlacedLogprob] = field(default_factory=list)
    finish: Finish | None = None

    def mean_logprob(self) -> float:
        """Mean log-probability of a token, by which ``best_of`` ranks."""
        values = [placed.entry.logprob for placed in self.logprobs]
        return sum(values) / len(values) if values else float("-inf")

"""Jump-forward: what the grammar forces next is proposed in the tokenizer's own spelling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachetools import LRUCache

from scheduler.drafters.retokenize import Retokenizer
from scheduler.drafters.source import DraftSource

if TYPE_CHECKING:
    from scheduler.request import Request

_ENDINGS_KEPT = 1024
_FEWEST_TRIES = 4
_RETRY_EVERY = 16


@dataclass(slots=True)
class _Ending:
    """How often a token at the end of a forced run was what the model drew."""

    tries: int = 0
    hits: int = 0
    skipped: int = 0

    def is_worth_it(self) -> bool:
        if self.tries < _FEWEST_TRIES or 2 * self.hits >= self.tries:
            return True
        self.skipped += 1
        return self.skipped % _RETRY_EVERY == 0


class GrammarDrafter(DraftSource):
    """Proposes forced text.

    Forced bytes leave open how they are cut into tokens, and the mask allows every way. The tokenizer's way is the one
    the model has learned, except for the last token: where the forced text ends, the model may prefer a token that
    holds the end and the beginning of what follows (``":["`` for the forced ``":[``). Which endings are so is learned
    while serving.

    Parameters
    ----------
    retokenizer
        Spells forced bytes.
    min_tokens
        Shorter runs are left to plain decoding.
    """

    name = "grammar"

    def __init__(self, retokenizer: Retokenizer, min_tokens: int = 1) -> None:
        self._retokenizer = retokenizer
        self._min_tokens = min_tokens
        self._endings: LRUCache[tuple[int, int], _Ending] = LRUCache(_ENDINGS_KEPT)
        self._proposed: dict[int, tuple[int, _Ending] | None] = {}
        """By request: at which index of its draft the end of the forced run is, and what is known of it."""

    def wants(self, request: Request) -> bool:
        return request.grammar is not None

    def propose(self, request: Request, behind: tuple[int, ...], max_tokens: int) -> Sequence[int]:
        self._proposed.pop(request.key, None)
        if request.grammar is None or behind:
            return ()
        forced = request.grammar.forced_bytes()
        if not forced:
            return ()
        tokens = self._retokenizer.spell(request.token_ids, forced)
        if not tokens:
            return ()
        if len(tokens) <= max_tokens:
            before = tokens[-2] if len(tokens) > 1 else request.token_ids[-1]
            ending = self._ending(before, tokens[-1])
            if not ending.is_worth_it():
                tokens = tokens[:-1]
            elif len(tokens) >= self._min_tokens:
                self._proposed[request.key] = (len(tokens) - 1, ending)
        return tokens[:max_tokens] if len(tokens) >= self._min_tokens else ()

    def verified(self, request: Request, num_proposed: int, num_accepted: int) -> None:
        known = self._proposed.pop(request.key, None)
        if known is None:
            return
        index, ending = known
        if num_proposed > index and num_accepted >= index:
            ending.tries += 1
            ending.hits += num_accepted > index

    def remove(self, request: Request) -> None:
        self._proposed.pop(request.key, None)

    def _ending(self, before: int, last: int) -> _Ending:
        ending = self._endings.get((before, last))
        if ending is None:
            ending = self._endings[before, last] = _Ending()
        return ending

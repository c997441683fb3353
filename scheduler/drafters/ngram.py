"""Prompt look-up: what followed the same few tokens before, in the prompt or in the answer, may follow again.

A. Saxena, "Prompt Lookup Decoding" (2023), with an index instead of a scan and an adaptive length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.drafters.adaptive import AdaptiveLength
from scheduler.drafters.ngram_index import NgramIndex
from scheduler.drafters.source import DraftSource

if TYPE_CHECKING:
    from scheduler.requests.request import Request

_SIZES = (4, 2)
"""Runs looked up, longest first: the longer the agreement, the likelier the continuation."""


class _State:
    __slots__ = ("indices", "length")

    def __init__(self, max_tokens: int) -> None:
        self.indices = [NgramIndex(size) for size in _SIZES]
        self.length = AdaptiveLength(max_tokens)


class NgramDrafter(DraftSource):
    """Copies from the request's own tokens.

    Parameters
    ----------
    max_tokens
        Longest draft.
    """

    name = "ngram"

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._states: dict[int, _State] = {}

    def propose(self, request: Request, behind: tuple[int, ...], max_tokens: int) -> Sequence[int]:
        state = self._states.get(request.key)
        if state is None:
            state = self._states[request.key] = _State(self._max_tokens)
        if state.length.is_paused():
            return ()
        tokens = request.token_ids
        run = (*tokens[-_SIZES[0] :], *behind)
        for index in state.indices:
            index.update(tokens)
            begin = index.find(run)
            if begin is not None:
                return tokens[begin : begin + min(max_tokens, state.length.length)]
        return ()

    def verified(self, request: Request, num_proposed: int, num_accepted: int) -> None:
        state = self._states.get(request.key)
        if state is not None:
            state.length.count(num_proposed, num_accepted)

    def remove(self, request: Request) -> None:
        self._states.pop(request.key, None)

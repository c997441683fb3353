"""Predicted outputs: the client says what the answer will mostly be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.drafters.adaptive import AdaptiveLength
from scheduler.drafters.ngram_index import NgramIndex
from scheduler.drafters.source import DraftSource

if TYPE_CHECKING:
    from scheduler.requests.request import Request

_RUN = 3
"""Tokens of the answer that must stand in the prediction to find the way back into it."""


class _State:
    __slots__ = ("index", "length", "num_followed", "place")

    def __init__(self, prediction: Sequence[int], max_tokens: int) -> None:
        self.index = NgramIndex(_RUN)
        self.index.update(prediction)
        self.length = AdaptiveLength(max_tokens)
        self.place: int | None = 0
        """Index in the prediction of the token that should come next; ``None``: the answer has left it."""
        self.num_followed = 0
        """Output tokens that ``place`` takes account of."""


class PredictionDrafter(DraftSource):
    """Follows the prediction while the answer does, and finds back into it behind a change.

    Parameters
    ----------
    max_tokens
        Longest draft.
    """

    name = "prediction"

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._states: dict[int, _State] = {}

    def wants(self, request: Request) -> bool:
        return bool(request.group.message.prediction_token_ids)

    def propose(self, request: Request, behind: tuple[int, ...], max_tokens: int) -> Sequence[int]:
        prediction = request.group.message.prediction_token_ids
        state = self._states.get(request.key)
        if state is None:
            state = self._states[request.key] = _State(prediction, self._max_tokens)
        self._follow(request, state, prediction)
        if state.length.is_paused():
            return ()
        place = _step(prediction, state.place, behind)
        if place is None:
            # Only look-ups may see a run that ends in guesses: state.place follows the output alone.
            place = state.index.find((*_end_of_output(request), *behind))
        if place is None:
            return ()
        return prediction[place : place + min(max_tokens, state.length.length)]

    def verified(self, request: Request, num_proposed: int, num_accepted: int) -> None:
        request.accepted_prediction_tokens += num_accepted
        request.rejected_prediction_tokens += num_proposed - num_accepted
        state = self._states.get(request.key)
        if state is not None:
            state.length.count(num_proposed, num_accepted)

    def remove(self, request: Request) -> None:
        self._states.pop(request.key, None)

    @staticmethod
    def _follow(request: Request, state: _State, prediction: Sequence[int]) -> None:
        """Take account of the output since the last call."""
        begin = request.prompt_length + state.num_followed
        new = request.token_ids[begin:]
        state.num_followed += len(new)
        if not new:
            return
        state.place = _step(prediction, state.place, new)
        if state.place is None:
            state.place = state.index.find(_end_of_output(request))


def _end_of_output(request: Request) -> list[int]:
    return request.token_ids[max(request.prompt_length, len(request.token_ids) - _RUN) :]


def _step(prediction: Sequence[int], place: int | None, tokens: Sequence[int]) -> int | None:
    """The place behind ``tokens`` if the prediction has them at ``place``."""
    if place is None or list(prediction[place : place + len(tokens)]) != list(tokens):
        return None
    return place + len(tokens)

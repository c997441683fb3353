"""Several sources as one drafter: what the grammar forces comes first, each next source continues behind it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from constrained.errors import TokenRejectedError, unforeseen
from constrained.grammar_object import InvalidGrammarObject
from scheduler.drafters.source import DraftSource
from scheduler.drafters.statistics import SourceCounters
from scheduler.messages import DrafterStats

if TYPE_CHECKING:
    from constrained.base import BaseGrammarObject
    from scheduler.request import Request

logger = logging.getLogger(__name__)

T = TypeVar("T")


class CombinedDrafter:
    """The drafter of a scheduler (:class:`scheduler.interfaces.Drafter`).

    Nothing that a source or a grammar raises reaches the loop. A source that raises is not asked again for the requests
    it was asked for; they go on without its drafts.

    Parameters
    ----------
    sources
        In order of trust: the tokens of an earlier one are verified first.
    vocab_size
        Ids at and above it are no tokens.
    """

    def __init__(self, sources: Sequence[DraftSource], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._sources = tuple(sources)
        self._counters = {source.name: SourceCounters() for source in sources}
        self._wanting: dict[int, tuple[DraftSource, ...]] = {}
        self._parts: dict[int, list[tuple[DraftSource, int]]] = {}
        """By request: who proposed how many tokens of the draft that is being verified."""

    def may_draft(self, request: Request) -> bool:
        if not request.group.message.may_draft:
            return False
        wanting = tuple(s for s in self._sources if self._attempt(s, (request,), partial(s.wants, request), False))
        if wanting:
            self._wanting[request.key] = wanting
        return bool(wanting)

    def prepare(self, requests: Sequence[Request]) -> None:
        for source in self._sources:
            wanted = [request for request in requests if source in self._wanting.get(request.key, ())]
            if wanted:
                self._attempt(source, wanted, partial(source.prepare, wanted), None)

    def propose(self, request: Request, max_tokens: int) -> tuple[int, ...]:
        draft: tuple[int, ...] = ()
        parts: list[tuple[DraftSource, int]] = []
        for source in self._wanting.get(request.key, ()):
            room = max_tokens - len(draft)
            if room <= 0:
                break
            none: Sequence[int] = ()
            guess = self._attempt(source, (request,), partial(source.propose, request, draft, room), none)
            tokens = self._possible(request, draft, guess[:room])
            if tokens:
                draft += tokens
                parts.append((source, len(tokens)))
        if draft:
            self._parts[request.key] = parts
        return draft

    def _possible(self, request: Request, before: tuple[int, ...], tokens: Sequence[int]) -> tuple[int, ...]:
        """The first of ``tokens`` that could be output at all: what is behind the others would be computed in vain."""
        stop_ids = request.group.stop_ids
        possible: list[int] = []
        for token in tokens:
            if not 0 <= token < self._vocab_size:
                break
            possible.append(token)
            if token in stop_ids:
                break
        if possible and request.grammar is not None:
            num_legal = self._num_legal(request, request.grammar, (*before, *possible)) - len(before)
            del possible[max(0, num_legal) :]
        return tuple(possible)

    @staticmethod
    def _num_legal(request: Request, grammar: BaseGrammarObject, tokens: Sequence[int]) -> int:
        """How many of ``tokens``, from the first on, the grammar takes. Its state is as before afterwards.

        A grammar that fails here may be left in any state, so it is replaced by its error: the step that is being
        planned fails this request, and no other.
        """
        try:
            return _num_legal(grammar, tokens)
        except Exception as error:
            request.grammar = InvalidGrammarObject(grammar.environment, unforeseen(error))
            return 0

    def _attempt(self, source: DraftSource, requests: Sequence[Request], call: Callable[[], T], otherwise: T) -> T:
        """The result of ``call``, or ``otherwise`` if it raises; then the source drafts no more for ``requests``."""
        try:
            return call()
        except Exception:
            ids = ", ".join(request.group.request_id for request in requests)
            logger.exception("the %s drafter failed and drafts no more for request %s", source.name, ids)
            for request in requests:
                others = tuple(other for other in self._wanting.pop(request.key, ()) if other is not source)
                if others:
                    self._wanting[request.key] = others
            return otherwise

    def verified(self, request: Request, num_proposed: int, num_accepted: int) -> None:
        """The first ``num_accepted`` of ``num_proposed`` guesses became output; fewer may be asked than proposed."""
        for source, length in self._parts.pop(request.key, ()):
            proposed = min(length, num_proposed)
            accepted = min(proposed, num_accepted)
            if not proposed:
                return
            self._counters[source.name].count(proposed, accepted)
            self._attempt(source, (request,), partial(source.verified, request, proposed, accepted), None)
            if accepted < proposed:
                return
            num_proposed -= proposed
            num_accepted -= accepted

    def remove(self, request: Request) -> None:
        self._parts.pop(request.key, None)
        for source in self._wanting.pop(request.key, ()):
            self._attempt(source, (request,), partial(source.remove, request), None)

    def stats(self) -> dict[str, DrafterStats]:
        return {name: counters.snapshot() for name, counters in self._counters.items()}


def _num_legal(grammar: BaseGrammarObject, tokens: Sequence[int]) -> int:
    accepted = 0
    try:
        for token in tokens:
            if grammar.is_terminated():
                break
            grammar.accept_token(token)
            accepted += 1
    except TokenRejectedError:
        pass  # the first token that does not fit
    grammar.rollback(accepted)
    return accepted

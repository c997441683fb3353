"""Several sources as one drafter: what the grammar forces comes first, each next source continues behind it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from constrained.engines.grammar_object import InvalidGrammarObject
from constrained.errors import GrammarError, TokenRejectedError, reraise_exit
from scheduler.drafters.contained import ContainedSource
from scheduler.drafters.source import DraftSource
from scheduler.drafters.statistics import SourceCounters
from scheduler.messages import DrafterStats

if TYPE_CHECKING:
    from constrained.engines.base import BaseGrammarObject
    from scheduler.requests.request import Request

logger = logging.getLogger(__name__)


class CombinedDrafter:
    """The drafter of a scheduler (:class:`scheduler.interfaces.Drafter`). It raises nothing, whatever a source does.

    A grammar that fails while drafts are checked ends its own request, at its next mask.

    Parameters
    ----------
    sources
        In order of trust: the tokens of an earlier one are verified first.
    vocab_size
        Ids at and above it are no tokens.
    """

    def __init__(self, sources: Sequence[DraftSource], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._sources = tuple(ContainedSource(source) for source in sources)
        self._counters = {source.name: SourceCounters() for source in sources}
        self._wanting: dict[int, tuple[DraftSource, ...]] = {}
        self._parts: dict[int, list[tuple[DraftSource, int]]] = {}
        """By request: who proposed how many tokens of the draft that is being verified."""

    def may_draft(self, request: Request) -> bool:
        if not request.group.message.may_draft:
            return False
        wanting = tuple(source for source in self._sources if source.wants(request))
        if wanting:
            self._wanting[request.key] = wanting
        return bool(wanting)

    def prepare(self, requests: Sequence[Request]) -> None:
        for source in self._sources:
            wanted = [request for request in requests if source in self._wanting.get(request.key, ())]
            if wanted:
                source.prepare(wanted)

    def propose(self, request: Request, max_tokens: int) -> tuple[int, ...]:
        draft: tuple[int, ...] = ()
        parts: list[tuple[DraftSource, int]] = []
        for source in self._wanting.get(request.key, ()):
            room = max_tokens - len(draft)
            if room <= 0:
                break
            tokens = self._possible(request, draft, source.propose(request, draft, room))
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
            num_legal = _num_legal(request, request.grammar, (*before, *possible)) - len(before)
            del possible[max(0, num_legal) :]
        return tuple(possible)

    def verified(self, request: Request, num_proposed: int, num_accepted: int) -> None:
        """The first ``num_accepted`` of ``num_proposed`` guesses became output; fewer may be asked than proposed."""
        for source, length in self._parts.pop(request.key, ()):
            proposed = min(length, num_proposed)
            accepted = min(proposed, num_accepted)
            if not proposed:
                return
            self._counters[source.name].count(proposed, accepted)
            source.verified(request, proposed, accepted)
            if accepted < proposed:
                return
            num_proposed -= proposed
            num_accepted -= accepted

    def remove(self, request: Request) -> None:
        self._parts.pop(request.key, None)
        for source in self._wanting.pop(request.key, ()):
            source.remove(request)

    def stats(self) -> dict[str, DrafterStats]:
        return {name: counters.snapshot() for name, counters in self._counters.items()}


def _num_legal(request: Request, grammar: BaseGrammarObject, tokens: Sequence[int]) -> int:
    """How many of ``tokens``, from the first on, the grammar takes. Its state is as before afterwards."""
    accepted = 0
    try:
        for token in tokens:
            if grammar.is_terminated():
                break
            grammar.accept_token(token)
            accepted += 1
    except TokenRejectedError:
        pass  # the first token that does not fit
    except BaseException as error:
        reraise_exit(error)
        return _give_up(request, grammar, error)
    try:
        grammar.rollback(accepted)
    except BaseException as error:
        reraise_exit(error)
        return _give_up(request, grammar, error)
    return accepted


def _give_up(request: Request, grammar: BaseGrammarObject, error: BaseException) -> int:
    """The state of the grammar is unknown: whatever asks it next gets the error, which ends the request."""
    logger.error("the grammar of request %s failed", request.group.message.request_id, exc_info=error)
    if not isinstance(error, GrammarError):
        error = GrammarError(f"{type(error).__name__} while drafts were checked")
    request.grammar = InvalidGrammarObject(grammar.environment, error)
    return 0

"""Jump-forward: what the grammar forces next is proposed, in the spelling the model is expected to choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.drafters.retokenize import Retokenizer
from scheduler.drafters.source import DraftSource
from scheduler.drafters.spellings import LearnedSpellings

if TYPE_CHECKING:
    from scheduler.requests.request import Request


MIN_FORCED_TOKENS = 1
"""Measured (``python -m bench.drafters --only lengths``)."""

_MOST_BYTES = 256
"""Forced text that is looked at: a schema may force a book, and a draft is a line of it."""


class GrammarDrafter(DraftSource):
    """Proposes forced text.

    Forced bytes leave open how they are cut into tokens: the mask allows every way, and the model chooses. The first
    guess is the tokenizer's own way; what the model drew at the same place before is a better one. That also tells
    where the model joins the end of the forced text and the beginning of what follows in one token (``":["`` where
    ``":[`` is forced).

    Parameters
    ----------
    retokenizer
        Spells forced bytes.
    token_bytes
        Visible bytes of each token id.
    min_tokens
        Shorter runs are left to plain decoding.
    """

    name = "grammar"

    def __init__(
        self, retokenizer: Retokenizer, token_bytes: Sequence[bytes], min_tokens: int = MIN_FORCED_TOKENS
    ) -> None:
        self._retokenizer = retokenizer
        self._token_bytes = token_bytes
        self._min_tokens = min_tokens
        self._learned = LearnedSpellings(token_bytes)
        self._asked: dict[int, tuple[int, bytes]] = {}
        """By request: how many tokens it had at the last draft, and what was forced behind them."""

    def wants(self, request: Request) -> bool:
        return request.grammar is not None

    def propose(self, request: Request, behind: tuple[int, ...], max_tokens: int) -> Sequence[int]:
        if request.grammar is None or behind:
            return ()
        known = request.token_ids
        asked = self._asked.pop(request.key, None)
        if asked is not None:
            self._learned.observe(known, *asked)
        forced = request.grammar.forced_bytes()[:_MOST_BYTES]
        if not forced:
            return ()
        self._asked[request.key] = (len(known), forced)
        tokens = self._spell(known, forced, max_tokens)
        return tokens if len(tokens) >= self._min_tokens else ()

    def remove(self, request: Request) -> None:
        self._asked.pop(request.key, None)

    def _spell(self, known: Sequence[int], forced: bytes, max_tokens: int) -> list[int]:
        context = list(known[-self._retokenizer.TAIL_TOKENS :])
        tokens: list[int] = []
        canonical: Sequence[int] = ()
        while forced and len(tokens) < max_tokens:
            token = self._learned.get(context[-1], forced)
            if token is None or (canonical and canonical[0] == token):
                canonical = canonical or self._retokenizer.spell(context, forced)
                if not canonical:
                    break
                token, canonical = canonical[0], canonical[1:]
            else:
                canonical = ()
            tokens.append(token)
            context.append(token)
            data = self._token_bytes[token]
            if not forced.startswith(data):
                break  # reaches behind what is forced
            forced = forced[len(data) :]
        return tokens

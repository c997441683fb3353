"""llguidance matchers that share a lexer, and go on with a new one when that has reached a limit.

Copies of a matcher share the states of its lexer, which grow with use. When one copy's step drives the lexer beyond a
limit, every other copy is broken with it, though its own text may be far from what was too much.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import llguidance

from constrained.errors import GrammarError, InvalidGrammarError

ResultT = TypeVar("ResultT")

_ADMISSION_STEP_FUEL = 500_000
_SERVING_STEP_FUEL = 2 * _ADMISSION_STEP_FUEL
"""What one step may cost the lexer, about 70 ns each. A grammar is tried with less than it has when it serves, so that
what comes close to the limit is refused before an answer has begun."""
_DEAD_END = "NoExtensionBias"
"""llguidance's word for a text that is not complete and that no token continues."""
_MAX_REBUILD_SECONDS = 0.05
"""CPU time of the longest build that the loop, and every other answer, waits for."""


def parser_limits(*, is_serving: bool) -> llguidance.LLParserLimits:
    """Limits of building and of every step. They bound how long one mask may take, whatever the grammar."""
    return llguidance.LLParserLimits(
        max_items_in_row=10_000,
        initial_lexer_fuel=5_000_000,
        step_lexer_fuel=_SERVING_STEP_FUEL if is_serving else _ADMISSION_STEP_FUEL,
        step_max_items=50_000,
        max_lexer_states=250_000,
        max_grammar_size=500_000,
        precompute_large_lexemes=True,
        verbose_errors=False,
    )


class MatcherStart:
    """A matcher in its start state, to copy from.

    Parameters
    ----------
    build
        Makes a matcher with a lexer of its own.
    """

    def __init__(self, build: Callable[[], llguidance.LLMatcher]) -> None:
        self._build = build
        started = time.thread_time()
        self.matcher = build()
        self._build_seconds = time.thread_time() - started
        self.is_spent = False
        """Whether the lexer has reached a limit: no copy works any more."""
        self._successor: MatcherStart | None = None

    def successor(self) -> MatcherStart:
        """The same with a lexer that works: one for all who ask.

        Raises
        ------
        GrammarError
            When building it would hold up every answer.
        """
        start = self
        while start.is_spent:
            if start._successor is None:
                if self._build_seconds > _MAX_REBUILD_SECONDS:
                    raise GrammarError("the grammar became too complex in another answer; try again")
                start._successor = MatcherStart(self._build)
            start = start._successor
        return start


class SharingMatcher:
    """One choice's matcher.

    When the lexer reaches a limit in another choice's step, or after many, this one takes its text up again with the
    successor. What fails with a lexer of its own at the first try is this choice's own failure.
    """

    def __init__(self, start: MatcherStart) -> None:
        self._start = start
        self._token_ids: list[int] = []
        self._failure: GrammarError | None = None
        """This choice's own; it stays, whatever becomes of the lexer."""
        self.matcher = start.matcher.deep_copy()

    def accept(self, token_id: int) -> bool:
        accepted = self._call(lambda matcher: matcher.try_consume_tokens([token_id]) == 1)
        if accepted:
            self._token_ids.append(token_id)
        return accepted

    def rollback(self, k: int) -> None:
        del self._token_ids[-k:]
        if self._start.is_spent or not self.matcher.rollback(k):
            self._take_up_again()

    def is_accepting(self) -> bool:
        return self._call(lambda matcher: matcher.is_accepting())

    def is_stopped(self) -> bool:
        return self._call(lambda matcher: matcher.is_stopped())

    def forced_bytes(self) -> bytes:
        return self._call(lambda matcher: matcher.compute_ff_bytes())

    def fill(self, address: int, num_bytes: int) -> None:
        """Write a mask to memory."""
        self._call(lambda matcher: matcher.unsafe_compute_mask_ptr(address, num_bytes))

    def _call(self, operation: Callable[[llguidance.LLMatcher], ResultT]) -> ResultT:
        if self._failure is not None:
            raise self._failure
        if self._start.is_spent:
            self._take_up_again()
        result = operation(self.matcher)
        if not self.matcher.is_error():
            return result
        self._start.is_spent = True
        failed = self.matcher
        try:
            self._take_up_again()
        except GrammarError:
            self._check(failed)  # without a lexer of its own to try, the fault counts as this choice's
        result = operation(self.matcher)
        self._check(self.matcher)
        return result

    def _take_up_again(self) -> None:
        self._start = self._start.successor()
        self.matcher = self._start.matcher.deep_copy()
        if self._token_ids:
            self.matcher.try_consume_tokens(self._token_ids)
            self._check(self.matcher)

    def _check(self, matcher: llguidance.LLMatcher) -> None:
        if matcher.is_error():
            self._start.is_spent = True
            why = reason(matcher.get_error())
            if _DEAD_END in why:
                self._failure = InvalidGrammarError(
                    "this specification leads to a dead end: nothing may follow what is written"
                )
            else:
                self._failure = GrammarError(
                    f"the grammar became too complex ({why}); simplify its patterns: few counted repetitions beside "
                    "other patterns, lengths and look-aheads"
                )
            raise self._failure


def reason(error: str) -> str:
    """llguidance's message without its dump of the parser's state."""
    message = error.partition("<state>")[0].replace("<non-verbose/>", "").strip() or "no reason given"
    return " ".join(message.split())[:500]

"""Trying a compiled grammar out before any request is served with it."""

from __future__ import annotations

import random
import time

import numpy as np
import numpy.typing as npt

from constrained.base import BaseGrammarObject
from constrained.errors import GrammarTooSlowError, InvalidGrammarError, NoLegalTokenError


def legal_token_ids(grammar: BaseGrammarObject) -> npt.NDArray[np.int64]:
    """The ids whose mask bit is set in this state, ascending."""
    mask = grammar.allocate_vocab_mask(grammar.environment.vocab_size, 1)
    grammar.fill_vocab_mask(mask, 0)
    return np.flatnonzero(np.unpackbits(mask.numpy()[0].view(np.uint8), bitorder="little"))


def walk(grammar: BaseGrammarObject, num_steps: int, seed: int = 0, max_mask_seconds: float | None = None) -> None:
    """Take random legal steps: fill the mask, accept one of its tokens, now and then roll some back.

    What a walk finds here, under a worker's limits, cannot happen to the process that serves.

    Parameters
    ----------
    grammar
        Left as it is.
    num_steps, seed
        How long, and which way.
    max_mask_seconds
        CPU seconds that a mask may take on average, a single one four times as long. Every choice of a step waits for
        the masks of all of them.

    Raises
    ------
    InvalidGrammarError
        When the start state allows no token at all: nothing satisfies the specification.
    GrammarTooSlowError
        When masks take too long.
    GrammarError
        Whatever the grammar itself raises on the way.
    """
    state = grammar.copy()
    choose = random.Random(seed)
    mask = state.allocate_vocab_mask(state.environment.vocab_size, 1)
    depth = 0
    spent = 0.0
    for step in range(num_steps):
        if state.is_terminated():
            state.rollback(depth)
            depth = 0
        started = time.thread_time()
        state.fill_vocab_mask(mask, 0)
        if max_mask_seconds is not None:
            last = time.thread_time() - started
            spent += last
            if last > 4 * max_mask_seconds or (step >= 4 and spent > (step + 1) * max_mask_seconds):
                slow = max(last, spent / (step + 1)) * 1e3
                raise GrammarTooSlowError(
                    f"finding out what may come next takes {slow:.0f} ms a token with this grammar, and every other "
                    "answer waits for it; avoid bounded repetitions of alternatives"
                )
        token_id = _any_bit(mask.numpy()[0], choose)
        if token_id is None:
            if step == 0:
                raise InvalidGrammarError("nothing satisfies this specification: no answer can even begin")
            if depth == 0:
                raise NoLegalTokenError("the grammar lost its start state on roll-back")
            # A dead end inside: legal, and found before sampling when a request meets it.
            state.rollback(depth)
            depth = 0
            continue
        state.accept_token(token_id)
        depth += 1
        if choose.random() < 0.1:
            back = choose.randint(1, depth)
            state.rollback(back)
            depth -= back


def _any_bit(words: npt.NDArray[np.int32], choose: random.Random) -> int | None:
    """A set bit: any word that has one, any bit of it. Not uniform over tokens, and cheaper than unpacking them."""
    candidates = np.flatnonzero(words)
    if not len(candidates):
        return None
    word = int(candidates[choose.randrange(len(candidates))])
    value = int(words[word]) & 0xFFFFFFFF
    return word * 32 + choose.choice([bit for bit in range(32) if value >> bit & 1])

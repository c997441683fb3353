"""Trying a compiled grammar out before any request is served with it."""

from __future__ import annotations

import codecs
import random
import time

import numpy as np
import numpy.typing as npt
import torch

from constrained.engines.base import BaseGrammarObject
from constrained.errors import GrammarTooSlowError, InvalidGrammarError, NoLegalTokenError


def legal_token_ids(grammar: BaseGrammarObject) -> npt.NDArray[np.int64]:
    """The ids whose mask bit is set in this state, ascending."""
    mask = grammar.allocate_vocab_mask(grammar.environment.vocab_size, 1)
    grammar.fill_vocab_mask(mask, 0)
    return np.flatnonzero(np.unpackbits(mask.numpy()[0].view(np.uint8), bitorder="little"))


def walk(
    grammar: BaseGrammarObject,
    num_steps: int,
    seed: int = 0,
    max_mask_seconds: float | None = None,
    *,
    prefers: bytes = b"",
) -> None:
    """Take random legal steps: fill the mask, accept one of its tokens, now and then roll some back.

    What a walk finds here, under a worker's limits, cannot happen to the process that serves.

    Parameters
    ----------
    grammar
        Left as it is.
    num_steps, seed
        How long, and which way.
    max_mask_seconds
        For engines that do not count their work: CPU seconds that a mask may take on average, a single one four times
        as long. Every choice of a step waits for the masks of all of them. A slow mask is filled three times and the
        shortest counts, because a busy machine makes a mask take longer and never shorter.
    prefers
        Characters that are taken where they are legal, the first of them first. A random walk hardly leaves a string.

    Raises
    ------
    InvalidGrammarError
        When a state allows no token at all: nothing satisfies the specification, or a text it allows cannot be ended.
    GrammarTooSlowError
        When masks take too long.
    GrammarError
        Whatever the grammar itself raises on the way.
    """
    state = grammar.copy()
    choose = random.Random(seed)
    mask = state.allocate_vocab_mask(state.environment.vocab_size, 1)
    preferred = _single_character_ids(state, prefers)
    taken: list[int] = []
    spent = 0.0
    for step in range(num_steps):
        if state.is_terminated():
            state.rollback(len(taken))
            taken = []
        last = _fill_seconds(state, mask)
        if max_mask_seconds is not None:
            if last > max_mask_seconds:
                last = min(last, _fill_seconds(state, mask), _fill_seconds(state, mask))
            spent += last
            if last > 4 * max_mask_seconds or (step >= 4 and spent > (step + 1) * max_mask_seconds):
                slow = max(last, spent / (step + 1)) * 1e3
                raise GrammarTooSlowError(
                    f"finding out what may come next takes {slow:.0f} ms a token with this grammar, and every other "
                    "answer waits for it; avoid bounded repetitions of alternatives"
                )
        words = mask.numpy()[0]
        token_id = next((i for i in preferred if words[i >> 5] >> (i & 31) & 1), None)
        if token_id is None:
            token_id = _any_bit(words, choose)
        if token_id is None:
            if step == 0:
                raise InvalidGrammarError("nothing satisfies this specification: no answer can even begin")
            if not taken:
                raise NoLegalTokenError("the grammar lost its start state on roll-back")
            if _ends_inside_a_character(state, taken):
                # Legal text that this vocabulary cannot spell; found before sampling when a request meets it.
                state.rollback(len(taken))
                taken = []
                continue
            text = b"".join(state.environment.vocabulary.token_bytes[i] for i in taken)
            raise InvalidGrammarError(
                f"this specification leads to a dead end: after {text.decode(errors='replace')[-80:]!r} nothing may "
                "follow, and the text is not complete"
            )
        state.accept_token(token_id)
        taken.append(token_id)
        if not prefers and choose.random() < 0.1:
            back = choose.randint(1, len(taken))
            state.rollback(back)
            del taken[-back:]


def _single_character_ids(state: BaseGrammarObject, characters: bytes) -> list[int]:
    wanted = [bytes([one]) for one in characters]
    tokens = state.environment.matchable_bytes
    return [tokens.index(one) for one in wanted if one in tokens]


def _ends_inside_a_character(state: BaseGrammarObject, token_ids: list[int]) -> bool:
    text = b"".join(state.environment.vocabulary.token_bytes[i] for i in token_ids)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder.decode(text)
    return bool(decoder.getstate()[0])


def _fill_seconds(state: BaseGrammarObject, mask: torch.Tensor) -> float:
    started = time.thread_time()
    state.fill_vocab_mask(mask, 0)
    return time.thread_time() - started


def _any_bit(words: npt.NDArray[np.int32], choose: random.Random) -> int | None:
    """A set bit: any word that has one, any bit of it. Not uniform over tokens, and cheaper than unpacking them."""
    candidates = np.flatnonzero(words)
    if not len(candidates):
        return None
    word = int(candidates[choose.randrange(len(candidates))])
    value = int(words[word]) & 0xFFFFFFFF
    return word * 32 + choose.choice([bit for bit in range(32) if value >> bit & 1])

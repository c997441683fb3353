"""Filling many mask rows: each engine's own batch call, in parallel threads from a measured row count on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache

import llguidance
import torch
import xgrammar
from llguidance.numpy import fill_next_token_bitmask_par

from constrained.engines.base import BaseGrammarObject
from constrained.engines.llguidance_backend import LLGuidanceObject
from constrained.engines.xgrammar_backend import XGrammarObject


def fill_rows(grammars: Sequence[BaseGrammarObject], vocab_mask: torch.Tensor, rows: Sequence[int]) -> None:
    """Fill one mask row for each object, of any mixture of backends.

    Parameters
    ----------
    grammars, rows
        Objects and the row of each; rows are distinct.
    vocab_mask
        [R, ceil(V / 32)] int32, contiguous, in host memory.
    """
    if not grammars:
        return
    config = grammars[0].environment.config
    if len(grammars) < config.parallel_fill_rows or _threads(config.fill_threads) < 2:
        for grammar, row in zip(grammars, rows, strict=True):
            grammar.fill_vocab_mask(vocab_mask, row)
        return
    words = vocab_mask.numpy()
    xgrammars: list[tuple[XGrammarObject, int]] = []
    llguidances: list[tuple[LLGuidanceObject, int]] = []
    for wrapped, row in zip(grammars, rows, strict=True):
        active = wrapped.active_grammar()
        if isinstance(active, XGrammarObject) and not active.is_stopped:
            xgrammars.append((active, row))
        elif isinstance(active, LLGuidanceObject) and not active.is_stopped:
            llguidances.append((active, row))
        elif active is not None:
            active.fill_vocab_mask(vocab_mask, row)
    threads = _threads(config.fill_threads)
    if xgrammars:
        _batch_matcher(threads).batch_fill_next_token_bitmask(
            [grammar.matcher for grammar, _ in xgrammars], words, [row for _, row in xgrammars]
        )
    if llguidances:
        fill_next_token_bitmask_par(_executor(threads), [(grammar.matcher, row) for grammar, row in llguidances], words)
        for llguidance_object, row in llguidances:
            llguidance_object.refill(words, row)
    filled: list[tuple[BaseGrammarObject, int]] = [*xgrammars, *llguidances]
    for grammar, row in filled:
        grammar.finish_row(words[row])


def _threads(configured: int | None) -> int:
    return configured if configured is not None else min(8, len(os.sched_getaffinity(0)))


@lru_cache(maxsize=4)
def _batch_matcher(threads: int) -> xgrammar.BatchGrammarMatcher:
    return xgrammar.BatchGrammarMatcher(max_threads=threads)


@lru_cache(maxsize=4)
def _executor(threads: int) -> llguidance.LLExecutor:
    return llguidance.LLExecutor(num_threads=threads)

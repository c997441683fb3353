"""Mask rows of a step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.base import BaseGrammarObject
from constrained.environment import GrammarEnvironment
from constrained.errors import NoLegalTokenError
from constrained.masks.slots import GrammarMasks
from constrained.spec import ReasoningSpec
from constrained.thinking.reasoner import ReasonerGrammarObject

Compile = Callable[..., BaseGrammarObject]
ENGINES = ["xgrammar", "llguidance", "outlines"]


def allowed(mask: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Bool oracle of a packed mask. [R, V]"""
    words = mask.numpy().view(np.uint8)
    return torch.from_numpy(np.unpackbits(words, axis=1, bitorder="little")[:, :vocab_size].astype(bool))


@pytest.mark.parametrize("vocab_size", [31, 32, 33, 349])
def test_a_new_mask_allows_the_vocabulary_and_nothing_beyond(vocab_size: int) -> None:
    mask = BaseGrammarObject.allocate_vocab_mask(vocab_size, 2)
    assert mask.shape == (2, (vocab_size + 31) // 32)
    assert mask.dtype == torch.int32
    assert allowed(mask, mask.shape[1] * 32).sum(1).tolist() == [vocab_size] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [64, 70])
def test_applying_a_mask_forbids_exactly_what_it_does(dtype: torch.dtype, vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(4, vocab_size, generator=generator).to(dtype)
    mask = torch.randint(-(2**31), 2**31, (4, (vocab_size + 31) // 32), dtype=torch.int32, generator=generator)
    expected = torch.where(allowed(mask, vocab_size), logits, torch.tensor(float("-inf"), dtype=dtype))
    BaseGrammarObject.apply_vocab_mask(logits, mask)
    assert torch.equal(logits, expected)


@pytest.fixture
def masks(environment: GrammarEnvironment) -> GrammarMasks:
    return GrammarMasks(environment, max_slots=4)


def test_two_steps_in_flight_never_share_rows(masks: GrammarMasks, compile_here: Compile) -> None:
    grammar = compile_here("regex", "a", "llguidance")
    masks.begin()
    masks.fill([grammar], [0])
    first = masks.rows(2)
    before = first.clone()
    masks.begin()
    masks.fill([compile_here("regex", "b", "llguidance")], [0])
    second = masks.rows(2)
    assert torch.equal(first, before)
    assert not torch.equal(first[0], second[0])


def test_a_reused_set_allows_everything_again(masks: GrammarMasks, compile_here: Compile) -> None:
    full = BaseGrammarObject.allocate_vocab_mask(masks.rows(1).shape[1] * 32 - 3, 1)
    masks.begin()
    masks.fill([compile_here("regex", "a", "llguidance")], [1])
    for _ in range(2):
        masks.begin()
    rows = masks.rows(3)
    assert full.shape == rows[:1].shape
    assert (rows == rows[0]).all()


def test_the_row_of_a_thinking_answer_lacks_the_stop_tokens_alone(masks: GrammarMasks, compile_here: Compile) -> None:
    thinking = ReasonerGrammarObject(
        compile_here("regex", "a", "llguidance"), ReasoningSpec(think_end_ids=(258,), is_thinking=True)
    )
    masks.begin()
    assert masks.fill([thinking], [0]) == []
    thinking_row, free_row = masks.rows(2)
    assert bin(int(thinking_row[8]) ^ int(free_row[8])) == "0b1"  # id 256
    assert torch.equal(thinking_row[:8], free_row[:8])
    assert torch.equal(thinking_row[9:], free_row[9:])


def test_a_row_that_allows_nothing_is_told_before_sampling(masks: GrammarMasks, compile_here: Compile) -> None:
    dead = compile_here("regex", "a[.]b", "llguidance")
    dead.set_stop_token_ids([ord(".")])
    dead.accept_token(ord("a"))
    alive = compile_here("regex", "b", "xgrammar")
    masks.begin()
    assert masks.fill([alive, dead], [0, 2]) == [2]
    with pytest.raises(NoLegalTokenError):
        masks.fill_drafts(dead, 3, [])


@pytest.mark.parametrize("engine", ENGINES)
def test_draft_rows_are_filled_up_to_the_first_illegal_draft_and_leave_the_state(
    masks: GrammarMasks, compile_here: Compile, engine: str
) -> None:
    grammar = compile_here("regex", "abc[xy]", engine)
    masks.begin()
    assert masks.fill_drafts(grammar, 0, [ord("a"), ord("b"), ord("x")]) == 2
    rows = allowed(masks.rows(4), 349)
    assert rows[0].nonzero().flatten().tolist() == [97, 259, 260]
    assert rows[1].nonzero().flatten().tolist() == [98, 261]
    assert rows[2].nonzero().flatten().tolist() == [99]
    assert rows[3].all()
    grammar.accept_token(ord("a"))


def test_drafts_behind_the_end_are_not_legal(masks: GrammarMasks, compile_here: Compile) -> None:
    masks.begin()
    assert masks.fill_drafts(compile_here("regex", "ab", "xgrammar"), 0, [ord("a"), ord("b"), ord("a")]) == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_forbidden_behind_a_drafted_end(masks: GrammarMasks, compile_here: Compile, engine: str) -> None:
    grammar = compile_here("regex", "a+", engine)
    masks.begin()
    assert masks.fill_drafts(grammar, 0, [ord("a"), 256]) == 2
    rows = allowed(masks.rows(3), 349)
    assert rows[1, 256]
    assert not rows[1].all()
    assert rows[2].all()


def test_parallel_filling_equals_filling_one_by_one(environment_with: Callable[..., GrammarEnvironment]) -> None:
    environment = environment_with(parallel_fill_rows=4, fill_threads=2)
    engines = AutoGrammarBackend(environment)
    reasoning = ReasoningSpec(think_end_ids=(258,), is_thinking=True)
    grammars: list[BaseGrammarObject] = []
    for index in range(24):
        grammar = engines.backend(ENGINES[index % 3]).dispatch_regex(f"a{{0,{index}}}b?").copy()
        for _ in range(index // 2):
            grammar.accept_token(97)
        if index % 5 == 0:
            grammar = ReasonerGrammarObject(grammar.copy(), reasoning)
            for token_id in [258, 97][: index // 5]:
                grammar.accept_token(token_id)
        elif index % 7 == 0:
            grammar.accept_token(256)
        grammars.append(grammar)
    together = BaseGrammarObject.allocate_vocab_mask(environment.vocab_size, len(grammars))
    one_by_one = together.clone()
    BaseGrammarObject.fill_vocab_mask_batched(grammars, together, range(len(grammars)))
    for row, grammar in enumerate(grammars):
        grammar.fill_vocab_mask(one_by_one, row)
    assert torch.equal(together, one_by_one)

"""A budget ends thinking without any other constraint, and roll-back undoes it exactly."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from constrained.spec import ReasoningSpec
from constrained.thinking.budget import ThinkingBudget

EOS = 256
LT_SLASH, THINK, GT = 268, 269, 270
SPELLED = ReasoningSpec(think_end_ids=(LT_SLASH, THINK, GT), is_thinking=True, budget=3)


def allowed(grammar, environment):
    mask = ThinkingBudget.allocate_vocab_mask(environment.vocab_size, 1)
    grammar.fill_vocab_mask(mask, 0)
    bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits)]


def test_the_marker_is_forced_once_the_budget_is_spent(environment):
    grammar = ThinkingBudget(environment, SPELLED)
    for token_id in (97, 98, 99):
        assert len(allowed(grammar, environment)) == environment.vocab_size
        assert grammar.active_grammar() is None
        grammar.accept_token(token_id)
    for token_id in (LT_SLASH, THINK, GT):
        assert allowed(grammar, environment) == [token_id]
        grammar.accept_token(token_id)
    assert len(allowed(grammar, environment)) == environment.vocab_size
    assert grammar.active_grammar() is None
    assert not grammar.is_terminated()


def test_the_end_of_text_is_no_matter_of_the_budget(environment):
    grammar = ThinkingBudget(environment, SPELLED)
    grammar.accept_token(EOS)
    assert not grammar.is_terminated()


def test_no_budget_is_no_mask(environment):
    grammar = ThinkingBudget(environment, ReasoningSpec(think_end_ids=(GT,), is_thinking=True, budget=0)).copy()
    assert allowed(grammar, environment) == [GT]
    closed = ThinkingBudget(environment, ReasoningSpec(think_end_ids=(GT,), is_thinking=False, budget=0))
    assert closed.active_grammar() is None


@given(
    token_ids=st.lists(st.sampled_from([97, LT_SLASH, THINK, GT]), max_size=12),
    cut=st.integers(0, 12),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_rollback_undoes_accept(environment, token_ids, cut):
    cut = min(cut, len(token_ids))
    grammar, straight = ThinkingBudget(environment, SPELLED), ThinkingBudget(environment, SPELLED)
    for token_id in token_ids:
        grammar.accept_token(token_id)
    for token_id in token_ids[:cut]:
        straight.accept_token(token_id)
    grammar.rollback(len(token_ids) - cut)
    masks = []
    for one in (grammar, straight):
        mask = ThinkingBudget.allocate_vocab_mask(environment.vocab_size, 1)
        one.fill_vocab_mask(mask, 0)
        masks.append(mask)
    assert torch.equal(*masks)
    assert (grammar.active_grammar() is None) == (straight.active_grammar() is None)

"""A budget bounds thinking that is a part of the grammar, and the rest of the grammar goes on."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from constrained.compile.walk import legal_token_ids
from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.base import BaseGrammarObject
from constrained.engines.llguidance_backend import LLGuidanceBackend
from constrained.engines.xgrammar_backend import XGrammarBackend
from constrained.environment import GrammarEnvironment
from constrained.masks.fill import fill_rows
from constrained.preparation import PrepareOptions, prepare
from constrained.spec import GrammarSpec, ReasoningSpec
from constrained.thinking.reasoner_backend import ReasonerGrammarBackend
from constrained.vocabulary import Vocabulary

CHANNEL, MESSAGE, END, EOS = 256, 257, 258, 259
ANALYSIS, FINAL, ANA, E_ACUTE, HALF_E = 260, 261, 262, 263, 264
TOKENS = (
    *(bytes([byte]) for byte in range(256)),
    *(b"<|channel|>", b"<|message|>", b"<|end|>", b"<eos>", b"analysis", b"final", b"ana", "é".encode(), b"x\xc3"),
)
SPECIAL = frozenset({CHANNEL, MESSAGE, END, EOS})
ENVIRONMENT = GrammarEnvironment(Vocabulary(TOKENS, SPECIAL), len(TOKENS) + 5, (EOS,))
BACKENDS = {"llguidance": LLGuidanceBackend, "xgrammar": XGrammarBackend}
THINKING = {
    "type": "tag",
    "begin": {"type": "token", "token": CHANNEL},
    "content": {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": "analysis"}, {"type": "token", "token": MESSAGE}, {"type": "any_text"},
        ],
    },
    "end": {"type": "token", "token": END},
}  # fmt: skip
ANSWER = {
    "type": "sequence",
    "elements": [
        {"type": "token", "token": CHANNEL},
        {"type": "const_string", "value": "final"},
        {"type": "token", "token": MESSAGE},
        {"type": "regex", "pattern": "ok"},
    ],
}
FORM = {"type": "sequence", "elements": [{"type": "star", "content": THINKING}, ANSWER]}
BEGINNING = (CHANNEL, ANALYSIS, MESSAGE)


def bounded(engine: str, budget: int) -> BaseGrammarObject:
    spec = GrammarSpec(kind="structural_tag", value=json.dumps({"type": "structural_tag", "format": FORM}))
    prepared = prepare(spec, PrepareOptions(backend=engine))
    grammar = BACKENDS[engine](ENVIRONMENT).dispatch_structural_tag(prepared.text)
    reasoning = ReasoningSpec(
        think_start_ids=BEGINNING, think_end_ids=(END,), is_thinking=False, may_think_again=True, budget=budget
    )
    wrapped = ReasonerGrammarBackend(AutoGrammarBackend(ENVIRONMENT)).wrap(grammar, reasoning).copy()
    wrapped.maybe_init_reasoning(reasoning.is_thinking)
    return wrapped


def accept(grammar: BaseGrammarObject, *token_ids: int) -> None:
    for token_id in token_ids:
        assert token_id in legal_token_ids(grammar)
        grammar.accept_token(token_id)


@pytest.fixture(params=["llguidance", "xgrammar"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_spent_budget_ends_the_part_and_the_answer_follows(engine):
    grammar = bounded(engine, 5)
    accept(grammar, *BEGINNING, *b"Hmm")
    assert len(legal_token_ids(grammar)) > 100
    accept(grammar, *b"..")
    assert legal_token_ids(grammar).tolist() == [END]
    accept(grammar, END, CHANNEL)
    assert not {ANALYSIS, ANA, ord("a")} & set(legal_token_ids(grammar).tolist())
    accept(grammar, FINAL, MESSAGE, *b"ok")
    assert grammar.is_terminated()


def test_all_parts_share_one_budget_however_their_marker_is_spelled(engine):
    grammar = bounded(engine, 3)
    accept(grammar, CHANNEL, ANA, *b"lysis", MESSAGE, *b"ab", END, *BEGINNING, ord("c"))
    assert legal_token_ids(grammar).tolist() == [END]


def test_no_budget_is_no_thinking(engine):
    grammar = bounded(engine, 0)
    accept(grammar, CHANNEL)
    assert set(legal_token_ids(grammar).tolist()) == {FINAL, ord("f")}


@pytest.mark.parametrize("budget", range(6))
def test_no_walk_thinks_longer_even_inside_a_character(engine, budget):
    choose = random.Random(budget)
    for _ in range(10):
        grammar = bounded(engine, budget)
        taken: list[int] = []
        while not grammar.is_terminated():
            legal = legal_token_ids(grammar).tolist()
            assert legal
            lead = [i for i in legal if i in (0xC3, 0xE2, 0xF0, HALF_E, E_ACUTE)]
            taken.append(choose.choice(lead or legal))
            grammar.accept_token(taken[-1])
        assert thinking_tokens(taken) <= budget


def thinking_tokens(token_ids: list[int]) -> int:
    """Tokens between the start and the end of thinking, from the text alone."""
    count, is_inside, header = 0, False, b""
    for token_id in token_ids:
        if is_inside:
            is_inside = token_id != END
            count += is_inside
        elif token_id == CHANNEL:
            header = b""
        elif token_id == MESSAGE:
            is_inside = header == b"analysis"
        else:
            header += TOKENS[token_id]
    return count


def test_rollback_undoes_accept(engine):
    tokens = [*BEGINNING, *b"abc", END, CHANNEL, FINAL, MESSAGE]
    grammar = bounded(engine, 3)
    masks = []
    for token_id in tokens:
        masks.append(legal_token_ids(grammar).tolist())
        grammar.accept_token(token_id)
    for mask in reversed(masks):
        grammar.rollback(1)
        assert legal_token_ids(grammar).tolist() == mask


def test_rows_filled_in_parallel_know_the_budget():
    environment = GrammarEnvironment(ENVIRONMENT.vocabulary, ENVIRONMENT.vocab_size, (EOS,))
    grammars = [bounded(engine, 1) for engine in BACKENDS for _ in range(environment.config.parallel_fill_rows)]
    for grammar in grammars:
        accept(grammar, *BEGINNING, ord("a"))
    mask = BaseGrammarObject.allocate_vocab_mask(environment.vocab_size, len(grammars))
    fill_rows(grammars, mask, range(len(grammars)))
    bits = np.unpackbits(mask.numpy().view(np.uint8), axis=1, bitorder="little")
    assert all(np.flatnonzero(row).tolist() == [END] for row in bits)


def test_markers_that_cannot_be_followed_are_refused():
    reasoning = ReasoningSpec(think_end_ids=(END, END), is_thinking=False, may_think_again=True, budget=1)
    backend = ReasonerGrammarBackend(AutoGrammarBackend(ENVIRONMENT))
    with pytest.raises(ValueError, match="start marker"):
        backend.get_cached_or_future_value(GrammarSpec(kind="regex", value="a"), reasoning)

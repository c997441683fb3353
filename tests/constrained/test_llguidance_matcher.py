"""What happens when one answer drives the lexer that it shares with others beyond a limit."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch

from constrained.compile.protocol import CompileRefusal, CompileResult
from constrained.compile.walk import legal_token_ids
from constrained.compile.worker import compile_and_walk
from constrained.engines import llguidance_matcher
from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.base import BaseGrammarObject
from constrained.engines.llguidance_matcher import MatcherStart
from constrained.environment import GrammarEnvironment
from constrained.errors import GrammarError
from constrained.masks.fill import fill_rows
from constrained.spec import GrammarSpec

# Harmless behind "a"; behind "q" a mask needs more of the lexer than a step may have, here as with a large vocabulary.
HEAVY = r"(/(.{1,63}\.){1,127}[a-z]+\.?/ & /.{1,255}/ & ~/.*:\/\/.*/)"
LARK = f'start: "a" /b*c/ | "q" HEAVY\nHEAVY: {HEAVY}\n'
HEAVY_PATTERN = r"^(?!.*://)(?=.{1,255}$)((.{1,63}\.){1,127}(?![0-9]*$)[a-z0-9-]+\.?)$"


@pytest.fixture(autouse=True)
def little_fuel(monkeypatch: pytest.MonkeyPatch) -> None:
    # A mask over 280 tokens costs a small part of one over 50,000.
    monkeypatch.setattr(llguidance_matcher, "_SERVING_STEP_FUEL", 3_000)
    monkeypatch.setattr(llguidance_matcher, "_ADMISSION_STEP_FUEL", 3_000)


@pytest.fixture
def start(engines: AutoGrammarBackend) -> BaseGrammarObject:
    backend = engines.backend("llguidance")
    return backend.deserialize(b"g" + LARK.encode())


def feed(grammar: BaseGrammarObject, text: bytes) -> BaseGrammarObject:
    for byte in text:
        grammar.accept_token(byte)
    return grammar


def break_lexer(start: BaseGrammarObject) -> BaseGrammarObject:
    broken = feed(start.copy(), b"q")
    with pytest.raises(GrammarError, match=r"too complex .*simplify its patterns"):
        legal_token_ids(broken)
    return broken


def test_a_neighbour_of_an_answer_that_reached_a_limit_goes_on(start: BaseGrammarObject) -> None:
    neighbour = feed(start.copy(), b"abb")
    break_lexer(start)
    assert legal_token_ids(neighbour).tolist() == [ord("b"), ord("c"), 261]
    neighbour.accept_token(ord("c"))
    assert neighbour.is_terminated()


@pytest.mark.parametrize("ask", ["is_accepting", "rollback", "forced_bytes", "accept"])
def test_whatever_a_neighbour_does_next_is_right(start: BaseGrammarObject, ask: str) -> None:
    neighbour = feed(start.copy(), b"abc" if ask == "is_accepting" else b"abb")
    break_lexer(start)
    if ask == "is_accepting":
        assert neighbour.is_accepting()
    elif ask == "rollback":
        neighbour.rollback(2)
        feed(neighbour, b"c")
        assert neighbour.is_accepting()
    elif ask == "forced_bytes":
        assert neighbour.forced_bytes() == b""
        assert legal_token_ids(neighbour).tolist() == [ord("b"), ord("c"), 261]
    else:
        with pytest.raises(GrammarError, match="does not fit"):
            neighbour.accept_token(ord("x"))
        feed(neighbour, b"bc")
        assert neighbour.is_accepting()


def test_copies_made_later_work(start: BaseGrammarObject) -> None:
    break_lexer(start)
    assert start.is_spent
    assert legal_token_ids(feed(start.copy(), b"ab")).tolist() == [ord("b"), ord("c"), 261]


def test_the_answer_that_is_too_much_fails_again_and_harms_nobody(start: BaseGrammarObject) -> None:
    neighbour = feed(start.copy(), b"ab")
    broken = break_lexer(start)
    for _ in range(2):
        with pytest.raises(GrammarError, match="too complex"):
            legal_token_ids(broken)
        assert legal_token_ids(neighbour).tolist() == [ord("b"), ord("c"), 261]


def test_in_a_batch_the_one_at_fault_is_told_from_the_others(
    environment_with: Callable[..., GrammarEnvironment],
) -> None:
    environment = environment_with(parallel_fill_rows=2, fill_threads=2)
    start = AutoGrammarBackend(environment).backend("llguidance").deserialize(b"g" + LARK.encode())
    good = [feed(start.copy(), b"ab") for _ in range(4)]
    broken = feed(start.copy(), b"q")
    mask = start.allocate_vocab_mask(environment.vocab_size, 5)
    with pytest.raises(GrammarError, match="too complex"):
        fill_rows([*good[:2], broken, *good[2:]], mask, range(5))
    fill_rows(good, mask, range(4))
    for row in mask[:4]:
        assert np.flatnonzero(_bits(row)).tolist() == [ord("b"), ord("c"), 261]


def _bits(row: torch.Tensor) -> np.ndarray:
    return np.unpackbits(row.numpy().view(np.uint8), bitorder="little")


def test_a_lexer_that_takes_long_to_build_is_not_built_while_others_wait(start: BaseGrammarObject) -> None:
    neighbour = feed(start.copy(), b"ab")
    shared: MatcherStart = start.start  # type: ignore[attr-defined]
    shared._build_seconds = 0.3
    break_lexer(start)
    with pytest.raises(GrammarError, match="in another answer; try again"):
        legal_token_ids(neighbour)


def schema_with(pattern: str) -> GrammarSpec:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "host": {"type": "string", "pattern": pattern}},
    }
    return GrammarSpec(kind="json_schema", value=json.dumps(schema))


def test_a_token_that_needs_too_much_is_refused_before_any_answer_begins(engines: AutoGrammarBackend) -> None:
    refusal = compile_and_walk(engines, schema_with(HEAVY_PATTERN))
    assert isinstance(refusal, CompileRefusal)
    assert "simplify its patterns" in refusal.message
    # Long counts beside each other are no reason in themselves.
    assert isinstance(compile_and_walk(engines, schema_with(r"^(?=.{1,255}$)[a-z.]{1,127}$")), CompileResult)

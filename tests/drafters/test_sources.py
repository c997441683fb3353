"""Each source by itself: what it proposes, and what it makes of broken states."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constrained.engines import llguidance_matcher
from constrained.spec import GrammarSpec
from sampling.params import SamplingParams
from scheduler.drafters.adaptive import AdaptiveLength
from scheduler.drafters.grammar import GrammarDrafter
from scheduler.drafters.ngram import NgramDrafter
from scheduler.drafters.ngram_index import NgramIndex
from scheduler.drafters.retokenize import Retokenizer
from scheduler.drafters.source import DraftSource
from scheduler.drafters.spellings import LearnedSpellings
from scheduler.messages import GenerateRequest


def fake_request(token_ids: list[int]) -> Any:
    return SimpleNamespace(key=1, token_ids=token_ids, prompt_length=0)


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 3), st.integers(0, 40))
def test_the_index_finds_the_latest_place_that_something_follows(tokens: list[int], size: int, cut: int) -> None:
    index = NgramIndex(size)
    index.update(tokens[:cut])
    index.update(tokens)
    run = tokens[-size:]
    places = [end for end in range(size, len(tokens)) if tokens[end - size : end] == run]
    assert index.find(tokens) == (places[-1] if places and len(run) == size else None)


def test_guesses_at_text_that_cannot_be_guessed_become_rare() -> None:
    length = AdaptiveLength(8)
    proposed = 0
    for _ in range(2000):
        if not length.is_paused():
            proposed += length.length
            length.count(length.length, 0)
    assert proposed < 20, "1 % of 2000 steps"


def test_one_right_guess_restores_a_long_draft() -> None:
    length = AdaptiveLength(8)
    while not length.is_paused():
        length.count(length.length, 0)
    while length.is_paused():
        pass
    for _ in range(4):
        length.count(length.length, length.length)
    assert length.length == 8


def test_a_repeated_run_is_continued_as_it_went_on_before() -> None:
    request = fake_request([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4])
    drafter = NgramDrafter(8)
    assert drafter.propose(request, (), 3) == [5, 6, 7]
    assert drafter.propose(request, (5,), 8) == [6, 7, 8, 9]
    assert list(drafter.propose(fake_request([1, 2]), (), 8)) == []


def test_forced_text_joins_the_committed_tokens(tiny: Any) -> None:
    retokenizer = Retokenizer(tiny.tokenizer, tiny.vocabulary.visible_bytes)
    text = '{"name":"Bob","category":"delivery"'
    token_ids = tiny.encode(text)
    for cut in range(len(token_ids)):
        forced = b"".join(tiny.vocabulary.token_bytes[t] for t in token_ids[cut:])
        assert retokenizer.spell(token_ids[:cut], forced) == tuple(token_ids[cut:])


@given(st.data())
def test_what_is_spelled_is_what_is_forced(tiny: Any, data: st.DataObject) -> None:
    """Also behind tokens that no tokenizer would choose, inside characters and before unfinished ones."""
    retokenizer = Retokenizer(tiny.tokenizer, tiny.vocabulary.visible_bytes)
    committed = data.draw(st.lists(st.integers(0, len(tiny.vocabulary) + 3), max_size=6))
    text = data.draw(st.text('aö日"{:, ', max_size=8)).encode()
    begin = data.draw(st.integers(0, 2))
    forced = text[begin : len(text) - data.draw(st.integers(0, 2))]
    spelled = retokenizer.spell(committed, forced)
    joined = b"".join(tiny.vocabulary.visible_bytes[t] for t in spelled)
    assert forced.startswith(joined)
    assert len(forced) - len(joined) < 4 or not spelled


def test_a_character_that_is_begun_is_finished(tiny: Any) -> None:
    token_bytes = tiny.vocabulary.token_bytes
    first, rest = token_bytes.index(b"\xe2"), b"\x82\xac and"
    retokenizer = Retokenizer(tiny.tokenizer, tiny.vocabulary.visible_bytes)
    spelled = retokenizer.spell([first], rest)
    assert b"".join(token_bytes[t] for t in spelled) == rest


def test_the_spelling_drawn_most_of_late_is_proposed() -> None:
    token_bytes = [b"a", b"b", b"ab", b"abc"]
    learned = LearnedSpellings(token_bytes)
    assert learned.get(3, b"ab") is None
    learned.observe([3, 2], 1, b"ab")
    learned.observe([3, 2], 1, b"ab")
    learned.observe([3, 0, 1], 1, b"ab")
    assert learned.get(3, b"ab") == 2
    assert learned.get(0, b"b") == 1
    for _ in range(3):
        learned.observe([3, 0, 1], 1, b"ab")
    assert learned.get(3, b"ab") == 0


def test_punctuation_is_guessed_as_it_was_spelled_in_front_of_other_text() -> None:
    token_bytes = [b"k", b'":"', b'":', b'"', b"v", b"1"]
    learned = LearnedSpellings(token_bytes)
    assert learned.get(0, b'":"') is None
    learned.observe([0, 2, 3], 1, b'":"')
    assert learned.get(4, b'":"') == 2, "behind another token"
    assert learned.get(2, b'"v') == 3, "in front of another text"
    assert learned.get(4, b'":1') is None, "other punctuation"
    learned.observe([0, 4], 1, b"v")
    assert learned.get(5, b"v") is None, "words are nobody's habit"
    learned.observe([4, 1], 1, b'":"')
    learned.observe([4, 1], 1, b'":"')
    assert learned.get(4, b'":"') == 1, "the very place counts more"


def test_a_book_that_is_forced_costs_no_more_than_a_line(tiny: Any) -> None:
    text = json.dumps("The quick brown fox jumps over the lazy dog. " * 2000)
    grammar = tiny.engine().grammars.fresh(GrammarSpec(kind="json_schema", value=f'{{"const":{text}}}'))
    encoded: list[str] = []

    class Recording:
        def encode(self, sequence: str, *, add_special_tokens: bool) -> Any:
            encoded.append(sequence)
            return tiny.tokenizer.encode(sequence, add_special_tokens=add_special_tokens)

    drafter = GrammarDrafter(Retokenizer(Recording(), tiny.vocabulary.visible_bytes), tiny.vocabulary.visible_bytes)
    request = SimpleNamespace(key=1, token_ids=tiny.encode("fox "), grammar=grammar)
    output = b""
    for _ in range(10):
        draft = list(drafter.propose(request, (), 16))  # type: ignore[arg-type]
        assert len(draft) == 16
        for token in draft:
            grammar.accept_token(token)
        request.token_ids += draft
        output += b"".join(tiny.vocabulary.token_bytes[token] for token in draft)
    assert text.encode().startswith(output)
    assert 0 < len(encoded) <= 10
    assert max(map(len, encoded)) < 500


class Wrong(DraftSource):
    """Proposes what a broken source might."""

    name = "wrong"

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens

    def propose(self, request: Any, behind: tuple[int, ...], max_tokens: int) -> Sequence[int]:
        return self.tokens


@pytest.mark.parametrize("tokens", [[-1], [10**9], [5] * 5000, [0, 0, 0], [1] * 9], ids=str)
@pytest.mark.parametrize("grammar", [None, GrammarSpec(kind="regex", value="[a-f]{12}")], ids=["free", "grammar"])
def test_a_broken_draft_leaves_plain_decoding(tiny: Any, tokens: list[int], grammar: GrammarSpec | None) -> None:
    request = GenerateRequest(
        request_id="a",
        prompt_token_ids=tiny.encode("fox"),
        sampling=SamplingParams(max_tokens=12, temperature=0.0),
        grammar=grammar,
    )
    expected = tiny.engine().run([request], together=False).answers
    run = tiny.engine(draft_model=Wrong(tokens), speculative="draft-model").run([request], together=False)
    assert not run.errors
    assert run.answers == expected


@pytest.mark.parametrize("room", [1, 2, 5])
def test_no_draft_reaches_past_the_context(tiny: Any, room: int) -> None:
    prompt = (tiny.encode("fox dog ") * 300)[: tiny.runner.context_length - room]
    request = GenerateRequest(
        request_id="a",
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True),
    )
    expected = tiny.engine().run([request], together=False)
    for source in ([7] * 5000, expected.answers["a", 0].token_ids * 9):
        run = tiny.engine(draft_model=Wrong(source), speculative="draft-model").run([request], together=False)
        assert run.answers == expected.answers
        assert not run.errors
    assert expected.answers["a", 0].end[0] == "length"


def test_a_pattern_that_forces_a_circle_is_drafted_to_its_end(tiny: Any) -> None:
    """Each round of the pattern may be the last, so nothing is forced across it."""
    request = GenerateRequest(
        request_id="a",
        prompt_token_ids=tiny.encode("fox"),
        sampling=SamplingParams(max_tokens=12, temperature=0.0),
        grammar=GrammarSpec(kind="regex", value="(abc)*", backend="outlines"),
    )
    expected = tiny.engine().run([request], together=False)
    run = tiny.engine(jump_forward=True).run([request], together=False)
    assert run.answers == expected.answers
    assert not run.errors


def test_a_lexer_that_is_spent_while_drafting_ends_no_other_request(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """llguidance shares a lexer between the answers of a grammar; one that spends it breaks the others' states."""
    for limit in ("_SERVING_STEP_FUEL", "_ADMISSION_STEP_FUEL"):
        monkeypatch.setattr(llguidance_matcher, limit, 3_000)
    monkeypatch.setattr(llguidance_matcher, "_MAX_REBUILD_SECONDS", -1.0)
    heavy = r"(/(.{1,63}\.){1,127}[a-z]+\.?/ & /.{1,255}/ & ~/.*:\/\/.*/)"
    lark = f'start: "a" "bcdefgh" /b*c/ | "q" HEAVY\nHEAVY: {heavy}\n'

    def request(name: str, first: str | None) -> GenerateRequest:
        bias = {} if first is None else {tiny.encode(first)[0]: 100.0}
        return GenerateRequest(
            request_id=name,
            prompt_token_ids=tiny.encode("The quick"),
            sampling=SamplingParams(max_tokens=12, temperature=0.0, logit_bias=bias),
            grammar=None if first is None else GrammarSpec(kind="ebnf", value=lark),
        )

    alone = tiny.engine(jump_forward=True).run([request("free", None)], together=True)
    engine = tiny.engine(jump_forward=True)
    spends = engine.run([request("spends", "q")], together=True)
    assert "simplify its patterns" in spends.errors["spends"]
    run = engine.run([request("shares", "a"), request("free", None)], together=True)
    assert "in another answer; try again" in run.errors["shares"]
    assert run.answers["free", 0] == alone.answers["free", 0]

"""However tokens are cut and held back, joined pieces are the whole decoded at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constrained.vocabulary import Vocabulary
from scheduler.messages import ChoiceOutput, Finish, TokenLogprob, Usage
from server.generation.choices import ChoiceAssembler
from server.generation.logprobs import chat_logprobs
from server.text.detokenizer import make_detokenizer

PIECES = [bytes([byte]) for byte in range(256)] + [
    "é".encode(),
    "€".encode()[:2],
    "𝄞".encode()[1:],
    b"abc",
    b"<|x|>",
    b"",
]
SPECIAL = frozenset({260, 261})
VOCABULARY = Vocabulary(tuple(PIECES), SPECIAL)
TRICKY = [0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xC0, 0xED, 0xA0, 0xFF, 65, *range(256, 262), 9999]

token_ids = st.lists(st.one_of(st.sampled_from(TRICKY), st.integers(0, 261)), max_size=24)


def spelled(ids: list[int], *, skip: bool) -> bytes:
    table = VOCABULARY.visible_bytes if skip else VOCABULARY.token_bytes
    return b"".join(table[i] for i in ids if i < len(table))


@st.composite
def messages(draw):
    """Token ids cut into messages, each with a number of held bytes whose beginning never moves backwards."""
    ids = draw(token_ids)
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    parts = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    held, total, shown = [], 0, 0
    for part in parts:
        total += len(spelled(part, skip=True))
        shown = draw(st.integers(shown, total))
        held.append(total - shown)
    end = draw(st.one_of(st.none(), st.integers(shown, total)))
    return ids, parts, held, end


@given(messages())
def test_joined_pieces_equal_the_whole_decoded_at_once(drawn):
    ids, parts, held, end = drawn
    detokenizer = make_detokenizer(VOCABULARY, skip_special_tokens=True)
    text = "".join(detokenizer.add(part, h) for part, h in zip(parts[:-1], held[:-1], strict=True))
    text += detokenizer.finish(parts[-1], end)
    assert text == spelled(ids, skip=True)[:end].decode("utf-8", "replace")


@given(messages())
def test_with_special_tokens_shown_how_it_is_cut_changes_nothing(drawn):
    ids, parts, held, end = drawn
    detokenizer = make_detokenizer(VOCABULARY, skip_special_tokens=False)
    text = "".join(detokenizer.add(part, h) for part, h in zip(parts[:-1], held[:-1], strict=True))
    text += detokenizer.finish(parts[-1], end)
    at_once = make_detokenizer(VOCABULARY, skip_special_tokens=False).finish(ids, end)
    assert text == at_once
    if end is None:
        assert text == spelled(ids, skip=False).decode("utf-8", "replace")


@given(token_ids)
def test_no_piece_ends_in_half_a_character(ids):
    detokenizer = make_detokenizer(VOCABULARY, skip_special_tokens=True)
    shown = ""
    whole = spelled(ids, skip=True)
    done = 0
    for token_id in ids:
        shown += detokenizer.add([token_id], 0)
        done += len(spelled([token_id], skip=True))
        # What is shown can be continued to the whole text: nothing shown was premature.
        assert whole.decode("utf-8", "replace").startswith(shown)
    assert done == len(whole)


def test_a_special_token_before_a_stop_string_is_shown_and_what_follows_the_cut_is_not():
    ids = [*b"ab", 260, *b"STOP", 260]
    detokenizer = make_detokenizer(VOCABULARY, skip_special_tokens=False)
    text = "".join(
        detokenizer.add([token_id], held) for token_id, held in zip(ids[:6], [0, 0, 0, 1, 2, 3], strict=True)
    )
    assert text == "ab<|x|>"
    assert text + detokenizer.finish(ids[6:], 2) == "ab<|x|>"


def output(ids, held=0, finish=None, logprobs=True):
    entries = [TokenLogprob(token_id, -1.0, []) for token_id in ids] if logprobs else None
    return ChoiceOutput(request_id="r", choice_index=0, token_ids=ids, held_bytes=held, logprobs=entries, finish=finish)


def finish_at(end):
    return Finish(reason="stop", usage=Usage(completion_tokens=1, cached_tokens=0), num_bytes=end)


@given(messages(), st.booleans())
def test_streamed_logprobs_equal_the_unstreamed_ones(drawn, skip):
    ids, parts, held, end = drawn
    streamed = ChoiceAssembler(VOCABULARY, skip_special_tokens=skip)
    entries = []
    for part, h in zip(parts[:-1], held[:-1], strict=True):
        entries += streamed.add(output(part, h)).logprobs
    entries += streamed.add(output(parts[-1], 0, finish_at(end))).logprobs
    whole = ChoiceAssembler(VOCABULARY, skip_special_tokens=skip).add(output(ids, 0, finish_at(end))).logprobs
    assert entries == list(whole)


@pytest.mark.parametrize("end", [None, 3])
def test_logprobs_of_visible_tokens_join_to_the_shown_bytes(end):
    ids = [*b"abc", 260, *b"STOP"]
    placed = ChoiceAssembler(VOCABULARY, skip_special_tokens=True).add(output(ids, 0, finish_at(end))).logprobs
    joined = b"".join(VOCABULARY.visible_bytes[item.entry.token_id] for item in placed)
    assert joined == b"abcSTOP"[:end]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_token_that_a_stop_string_cuts_in_two_has_the_bytes_before_it(streamed):
    assembler = ChoiceAssembler(VOCABULARY, skip_special_tokens=True)
    placed = [*assembler.add(output([65, 259], held=1)).logprobs] if streamed else []
    assert [item.entry.token_id for item in placed] == ([65] if streamed else [])  # "bc" may still be cut off
    placed += assembler.add(output([66] if streamed else [65, 259, 66], 0, finish_at(3))).logprobs
    entries = chat_logprobs(VOCABULARY, placed, num_top=0, skip_special_tokens=True)["content"]
    assert [entry["token"] for entry in entries] == ["A", "abc"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]) == b"Aab"


def test_text_offsets_count_characters():
    ids = ["é".encode()[0], "é".encode()[1], 65, 256, 65]
    placed = ChoiceAssembler(VOCABULARY, skip_special_tokens=True, text_offset=10).add(output(ids, 0, finish_at(None)))
    assert [item.text_offset for item in placed.logprobs] == [10, 10, 11, 12, 13]

"""Thinking told from the answer: every way to cut the text, every state of the prompt, no end marker."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import pytest

from server.answer.events import collect
from server.reasoning.formats import reasoning_format, recognise
from server.reasoning.splitter import ReasoningSplitter
from server.reasoning.state import ThinkingState, thinking_state

FORM = reasoning_format("think")
CONTROLS = ("<|im_start|>", "<|im_end|>")
PIECES = ["<think>", "</think>", "<think", "</thi", " ", "\n\n", "a", "word", "<", ">", "/", "é😀"]


def split(pieces, state, **options):
    splitter = ReasoningSplitter(FORM, state, **options)
    answer = collect([event for piece in pieces for event in splitter.add(piece)] + splitter.finish())
    return answer.reasoning, answer.content


@hypothesis.given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=10),
    state=st.sampled_from(ThinkingState),
    keeps_markers=st.booleans(),
    places=st.lists(st.integers(0, 40), max_size=6),
)
def test_any_text_cut_anywhere_gives_the_same(pieces, state, keeps_markers, places):
    text = "".join(pieces)
    whole = split([text], state, keeps_markers=keeps_markers)
    places = sorted({min(place, len(text)) for place in places})
    cut = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert split(cut, state, keeps_markers=keeps_markers) == whole
    assert split(list(text), state, keeps_markers=keeps_markers) == whole
    if keeps_markers:
        assert "".join(whole) == text


@pytest.mark.parametrize(
    ("state", "text", "reasoning", "content"),
    [
        (ThinkingState.OPEN, "Let me see.\n</think>\n\nYes.", "Let me see.", "Yes."),
        (ThinkingState.OPEN, "<think>\nLet me see.</think>Yes.", "Let me see.", "Yes."),
        (ThinkingState.UNSAID, "\n<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        (ThinkingState.UNSAID, "Yes, </think> it is.", "", "Yes, </think> it is."),
        (ThinkingState.CLOSED, '{"x": "<think>"}', "", '{"x": "<think>"}'),
        # no end marker
        (ThinkingState.OPEN, "Good morning!", "Good morning!", ""),
        (ThinkingState.UNSAID, "Good morning!", "", "Good morning!"),
        (ThinkingState.CLOSED, "Good morning!", "", "Good morning!"),
        (ThinkingState.UNSAID, "<think>Hm", "Hm", ""),
        # unfinished markers
        (ThinkingState.OPEN, "Hm </thi", "Hm </thi", ""),
        (ThinkingState.UNSAID, "<thin", "", "<thin"),
        (ThinkingState.OPEN, "</think>Yes.", "", "Yes."),
    ],
)
def test_the_rule(state, text, reasoning, content):
    assert split([text], state) == (reasoning, content)


def test_thoughts_are_shown_as_they_come():
    splitter = ReasoningSplitter(FORM, ThinkingState.OPEN)
    assert [collect(splitter.add(piece)).reasoning for piece in ("One", " two", "\n</", "think>")] == [
        "One",
        " two",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("prompt", "state"),
    [
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n", ThinkingState.OPEN),
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", ThinkingState.CLOSED),
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", ThinkingState.UNSAID),
        ("<|im_start|>user\nSay <think><|im_end|>\n<|im_start|>assistant\n", ThinkingState.UNSAID),
        ("<|im_start|>user\n</think> no<|im_end|>\n<|im_start|>assistant\n<think>\n", ThinkingState.OPEN),
        ("<|im_start|>assistant\n<think>\nSo far", ThinkingState.OPEN),
        ("<|im_start|>assistant\n<think>\nSo far</think>\nIt is", ThinkingState.CLOSED),
        ("no control token <think> here", ThinkingState.UNSAID),
    ],
)
def test_whether_a_request_thinks_is_read_from_its_prompt(prompt, state):
    assert thinking_state(prompt, FORM, CONTROLS) is state


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (None, None),
        ("{{ messages }}", None),
        ("<think>{% if enable_thinking %}{% endif %}", "qwen3"),
        ("<\uff5cAssistant\uff5c><think>\n", "deepseek-r1"),
        ("{{ '<think>' }}", "think"),
        ("<|channel|>analysis", "gpt-oss"),
    ],
)
def test_a_template_names_its_format(template, name):
    found = recognise(template)
    assert (found.name if found else None) == name


def test_an_unknown_parser_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match="qwen3"):
        reasoning_format("none of them")

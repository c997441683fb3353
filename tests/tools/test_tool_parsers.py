"""Tool-call parsers: recorded answers, every way to cut them, and what is malformed."""

from __future__ import annotations

import sys
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from server.answer.events import CallArguments, CallBegin, CallEnd, collect
from server.formats.registry import TOOL_PARSERS, recognise, tool_parser
from server.tools.custom import CustomCallParser

sys.path.insert(0, str(Path(__file__).parent))
from tool_texts import LOOSE, MALFORMED_CASES, RECORDED, RECORDED_CASES, SCHEMAS, calls_of

PIECES = sorted(
    {
        "<tool_call>", "</tool_call>", '{"name": "get_weather", "arguments": ', '{"city": "Oslo"}', "}", "{", "[", "]",
        "<function=get_weather>", "<parameter=city>", "</parameter>", "</function>", "\n", " ", "x", '"', "\\", ";",
        "[get_weather(", "city=", "'a'", "3", ")", ",", "lamp_on(", "<|channel|>", "final", "commentary",
        "analysis", "**{", "<|message|>", "<|end|>", "<|start|>assistant", "<|call|>", " to=functions.lamp_on",
        "<|constrain|>json", "é😀",
        '{"name": "lamp_on", "parameters": {}}', "<|python_tag|>", "<", "<|", "<tool_call", "</", "True",
        '<custom_tool_call name="sh">\n', "\n</custom_tool_call>", "<custom_tool_call", "ls",
    }
)  # fmt: skip


def parsed(parser, pieces):
    events = [event for piece in pieces for event in parser.add(piece)]
    return collect([*events, *parser.finish()])


def make(name, *, is_constrained, with_custom=False):
    parser = tool_parser(name)(SCHEMAS, is_constrained=is_constrained)
    return CustomCallParser({"sh"}, parser, is_constrained=is_constrained) if with_custom else parser


def cut(text, places):
    places = sorted({min(place, len(text)) for place in places})
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("is_constrained", [True, False])
@pytest.mark.parametrize(("name", "text", "content", "calls"), RECORDED_CASES)
def test_recorded_answers_are_understood(name, text, content, calls, is_constrained):
    answer = parsed(make(name, is_constrained=is_constrained), [text])
    assert calls_of(answer) == calls
    assert answer.content.strip() == content
    assert all(call.is_complete for call in answer.calls)


@pytest.mark.parametrize(("name", "text", "calls"), LOOSE)
def test_what_only_unconstrained_models_write_is_understood(name, text, calls):
    for pieces in ([text], list(text)):
        answer = parsed(make(name, is_constrained=False), pieces)
        assert calls_of(answer) == calls
        assert answer.is_complete


@pytest.mark.parametrize("is_constrained", [True, False])
@pytest.mark.parametrize(("name", "text", "content", "calls"), RECORDED_CASES)
def test_every_cut_in_two_and_every_character_alone_give_the_same(name, text, content, calls, is_constrained):
    whole = parsed(make(name, is_constrained=is_constrained), [text])
    for place in range(len(text) + 1):
        assert parsed(make(name, is_constrained=is_constrained), cut(text, [place])) == whole
    assert parsed(make(name, is_constrained=is_constrained), list(text)) == whole


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=120)
def test_any_text_cut_anywhere_gives_the_same(name, data):
    text = "".join(data.draw(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=14)))
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    is_constrained, with_custom = data.draw(st.booleans()), data.draw(st.booleans())
    options = {"is_constrained": is_constrained, "with_custom": with_custom}
    whole = parsed(make(name, **options), [text])
    assert parsed(make(name, **options), cut(text, places)) == whole
    assert parsed(make(name, **options), list(text)) == whole


@pytest.mark.parametrize(("name", "text"), MALFORMED_CASES)
def test_a_malformed_call_comes_back_as_text(name, text):
    answer = parsed(make(name, is_constrained=False), list(text))
    assert answer.calls == []
    assert answer.content == (text if name != "harmony" else "{oops")


MARKUP = {"llama3_json": ["<|python_tag|>"], "harmony": ["<|", " to="]}
"""What a format writes as special tokens, which are no text, or as headers."""


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
@hypothesis.given(
    pieces=st.lists(st.sampled_from([*PIECES, "\n", " ", "\t"]), max_size=10),
    is_constrained=st.booleans(),
    with_custom=st.booleans(),
)
@hypothesis.example(pieces=["\n", "[get_weather("], is_constrained=False, with_custom=False)
@hypothesis.settings(max_examples=120)
def test_without_calls_a_text_is_kept_to_the_letter(name, pieces, is_constrained, with_custom):
    text = "".join(pieces)
    hypothesis.assume(not any(markup in text for markup in MARKUP.get(name, ())))
    answer = parsed(make(name, is_constrained=is_constrained, with_custom=with_custom), pieces)
    if not answer.calls:
        assert answer.content == text


def test_white_space_before_a_special_token_of_the_format_is_kept():
    assert parsed(make("llama3_json", is_constrained=False), ["\n<|python_tag|>no call"]).content == "\nno call"


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_a_constrained_call_streams_its_name_first_and_then_its_arguments_as_they_come(name):
    text = next(text for text, _, calls in RECORDED[name] if calls and calls[0][0] == "get_weather")
    parser = make(name, is_constrained=True)
    steps = [parser.add(character) for character in text]
    events = [event for step in steps for event in step if isinstance(event, CallBegin | CallArguments | CallEnd)]
    assert isinstance(events[0], CallBegin)
    first = next(i for i, step in enumerate(steps) if any(isinstance(event, CallBegin) for event in step))
    end = next(i for i, step in enumerate(steps) if any(isinstance(event, CallEnd) for event in step))
    assert (
        text[: first + 1]
        .rstrip(" (\n<{")
        .endswith(("get_weather", '"arguments":', '"parameters":', "<|message|>", ">"))
    )
    shown = "".join(event.text for step in steps[: end + 1] for event in step if isinstance(event, CallArguments))
    assert '"city"' in shown
    fragments = [step for step in steps[first:end] if any(isinstance(event, CallArguments) for event in step)]
    assert len(fragments) > len(shown) / 4


@pytest.mark.parametrize(("name", "text", "content", "calls"), RECORDED_CASES)
def test_a_text_cut_off_anywhere_loses_nothing_that_was_said(name, text, content, calls):
    whole = parsed(make(name, is_constrained=True), [text])
    for size in range(len(text)):
        answer = parsed(make(name, is_constrained=True), [text[:size]])
        assert [call.name for call in answer.calls] == [call.name for call in whole.calls[: len(answer.calls)]]
        for call, finished in zip(answer.calls, whole.calls, strict=False):
            # What was held as the beginning of an end tag is shown.
            num_held = len("\\n</parameter>") if name == "qwen3_coder" else 0
            assert finished.arguments.startswith(call.arguments[: max(0, len(call.arguments) - num_held)])
        if not answer.calls and name != "harmony":
            assert answer.content == text[:size].removeprefix("<|python_tag|>")
        if answer.is_complete and name != "harmony":  # what was begun of the next call is no text
            assert whole.content.strip().startswith(answer.content.strip())


def test_the_beginning_of_a_custom_call_behind_a_complete_call_is_no_text():
    call = '<custom_tool_call name="sh">\nls\n</custom_tool_call>'
    for size in range(len(call) - 10):
        parser = make("hermes", is_constrained=True, with_custom=True)
        answer = parsed(parser, [call + call[:size]])
        assert answer.calls[0].is_complete
        assert answer.content == ""


LONG = "a long text, " * 8


@pytest.mark.parametrize(
    ("name", "beginning"),
    [
        ("hermes", '<tool_call>\n{"name": "save-file", "arguments": {"content": "'),
        ("json", '{"name": "save-file", "arguments": {"content": "'),
        ("llama3_json", '{"name": "save-file", "parameters": {"content": "'),
        ("pythonic", '[save-file(content="'),
        ("qwen3_coder", "<tool_call>\n<function=save-file>\n<parameter=content>\n"),
        ("harmony", '<|channel|>commentary to=functions.save-file <|constrain|>json<|message|>{"content": "'),
    ],
)
def test_of_an_unfinished_value_everything_is_shown_at_once(name, beginning):
    parser = make(name, is_constrained=True)
    answer = collect(parser.add(beginning + LONG))
    assert answer.calls[0].name == "save-file"
    assert LONG.rstrip() in answer.calls[0].arguments
    assert not answer.is_complete


def test_text_behind_what_may_become_a_call_is_held_no_longer_than_needed():
    parser = make("hermes", is_constrained=True)
    assert collect(parser.add("a <tool")).content == "a "
    assert collect(parser.add("box>")).content == "<toolbox>"


def test_a_call_cut_off_inside_its_arguments_is_not_complete():
    answer = parsed(make("hermes", is_constrained=True), ['<tool_call>\n{"name": "get_weather", "arguments": {"city'])
    assert [call.name for call in answer.calls] == ["get_weather"]
    assert not answer.is_complete


def test_a_custom_call_has_its_input_as_it_was_written():
    text = 'ok <custom_tool_call name="sh">\nls "a" | wc\n\n</custom_tool_call>'
    answer = parsed(make("hermes", is_constrained=True, with_custom=True), list(text))
    assert answer.content == "ok "
    assert [(call.name, call.arguments, call.is_custom) for call in answer.calls] == [("sh", 'ls "a" | wc\n', True)]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ messages }}", "hermes"),
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("{% if tools %}<tool_call><function=x><parameter=y>{% endif %}", "qwen3_coder"),
        ('{% if tools %}<|start_header_id|>{"name": x, "parameters": y}{% endif %}', "llama3_json"),
        ('{% if tools %}<|header_start|>{"name": x, "parameters": y}{% endif %}', "llama3_json"),
        ("{% if tools %}[func_name1(params_name1=params_value1)]{% endif %}", "pythonic"),
        ("{% if tools %}<|channel|>commentary<|message|>{% endif %}", "harmony"),
        ("{% if tools %}something else{% endif %}", "json"),
    ],
)
def test_a_template_names_its_format(template, name):
    assert recognise(template).name == name


def test_an_unknown_parser_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match="hermes"):
        tool_parser("none of them")

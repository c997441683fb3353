"""``scansion grammar check`` with a byte-level tokenizer made here."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from server.cli.grammar import main

Run = Callable[..., int]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(letters)} | {'{"': 256, "ab": 257}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[("{", '"'), ("a", "b")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


@pytest.fixture
def check(tokenizer: Path) -> Run:
    return lambda *arguments: main(["check", "--tokenizer", str(tokenizer), *map(str, arguments)])


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_a_schema_and_its_instances(check: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = write(
        tmp_path / "schema", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}
    )
    good = write(tmp_path / "good", '{\n "b": [1.50],\n "a": 3}\n')
    bad = write(tmp_path / "bad", {"a": "x"})
    assert check(schema, "--instance", good) == 0
    assert "taken by llguidance" in capsys.readouterr().out
    assert check(schema, "--instance", good, bad) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[1:]] == ["accepted", "not accepted"]


def test_a_refusal_names_the_place(check: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = write(tmp_path / "schema", {"properties": {"a": {"type": "array", "uniqueItems": True}}})
    assert check(schema) == 1
    assert "refused at /properties/a/uniqueItems" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name a file"),
        (("missing.json",), "cannot read missing.json: No such file or directory"),
        (("--jsonl", "x"), "leave SPEC and --instance out"),
        (("x", "--inline", "--timeout", "0"), "must be above zero"),
        (("true", "--inline", "--backend", "foo"), "invalid choice: 'foo'"),
        (("x", "--inline", "--kind", "choice"), "a choice is a JSON list of texts"),
        (("[]", "--inline", "--kind", "choice"), "a choice is a JSON list of texts"),
        (('["a", ""]', "--inline", "--kind", "choice"), "texts that are not empty"),
    ],
)
def test_a_mistake_in_the_command_is_code_2(
    check: Run, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    try:
        code = check(*arguments)
    except SystemExit as exit:
        code = exit.code
    assert code == 2
    assert said in capsys.readouterr().err


def test_a_choice_is_one_of_its_texts(check: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    choices = write(tmp_path / "choices", ["a.b", "ab"])
    taken, not_taken = write(tmp_path / "taken", "a.b\n"), write(tmp_path / "not_taken", "axb")
    assert check(choices, "--kind", "choice", "--instance", taken, not_taken) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[1:]] == ["accepted", "not accepted"]


def test_lines_are_answered_in_order(
    check: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {
            "id": "r",
            "kind": "regex",
            "spec": "ab+",
            "instances": [{"valid": True, "text": "abb"}, {"valid": False, "text": "a"}],
        },
        {"id": "bad", "kind": "json_schema", "spec": {"type": "strnig"}, "instances": [{"valid": True, "data": 1}]},
        {
            "id": "é",
            "kind": "json_schema",
            "spec": {"type": "number"},
            "instances": [{"valid": True, "data": 1e30}, {"valid": False, "text": "\ud800"}],
        },
        {
            "id": "e",
            "kind": "ebnf",
            "spec": 'root ::= "<|im_end|>"',
            "instances": [{"valid": True, "text": "<|im_end|>"}],
        },
        {
            "id": "t",
            "kind": "structural_tag",
            "spec": {"format": {"type": "const_string", "value": "x"}},
            "instances": [],
        },
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(map(json.dumps, lines))))
    assert check("--jsonl") == 0
    output = capsys.readouterr().out
    assert output.isascii()
    answers = [json.loads(line) for line in output.splitlines()]
    assert [answer["id"] for answer in answers] == ["r", "bad", "é", "e", "t"]
    assert [answer["compiled"] for answer in answers] == [True, False, True, True, True]
    assert [answer["backend"] for answer in answers] == ["llguidance", None, "llguidance", "llguidance", "llguidance"]
    assert answers[1]["error"]["pointer"] == "/type"
    accepted = [[one["accepted"] for one in answer["instances"]] for answer in answers]
    # What spells a special token is ordinary text to a grammar, never the token itself.
    assert accepted == [[True, False], [False], [True, False], [True], []]
    assert set(answers[0]) == {"id", "compiled", "backend", "error", "compile_ms", "size_bytes", "instances"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": 1}', "line 2 is not an object with a 'kind' and a 'spec'"),
        ("[]", "line 2 is not an object with a 'kind' and a 'spec'"),
        ('{"id": 1', "line 2 is not JSON: Expecting ',' delimiter at column 9"),
        ('{"kind": "foo", "spec": "a"}', "line 2: Invalid enum value 'foo' - at `$.kind`"),
        (
            '{"kind": "regex", "spec": "a", "instances": {}}',
            "line 2: Expected `array`, got `object` - at `$.instances`",
        ),
        ('{"kind": "regex", "spec": "a", "instances": [{"text": 5}]}', "Expected `str`, got `int`"),
        ('{"kind": "regex", "spec": "a", "instances": [{}]}', "line 2: instance 0 has to have either 'text' or 'data'"),
        ('{"kind": "choice", "spec": [1]}', "line 2: a choice is a JSON list of texts"),
        ("[" * 100_000, "line 2 is nested too deeply"),
    ],
)
def test_a_line_that_is_no_check_is_named(
    check: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"\n{line}\n"))
    assert check("--jsonl") == 2
    assert said in capsys.readouterr().err


def test_input_that_is_no_text_is_an_error(
    check: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), encoding="utf-8"))
    assert check("--jsonl") == 2
    assert "standard input is not UTF-8" in capsys.readouterr().err


def test_a_compile_that_takes_too_long_ends_with_an_error(
    check: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wide: Any = {"enum": [f"{i:x}" * 9 for i in range(60_000)]}
    lines = [
        {"id": "slow", "kind": "json_schema", "spec": {"allOf": [wide, wide]}, "instances": []},
        {"id": "next", "kind": "regex", "spec": "a", "instances": [{"valid": True, "text": "a"}]},
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(map(json.dumps, lines))))
    assert check("--jsonl", "--backend", "xgrammar", "--timeout", "0.3") == 0
    slow, following = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert not slow["compiled"]
    assert slow["error"]["message"]
    assert following["compiled"]
    assert following["instances"] == [{"accepted": True}]

"""A pattern means the same wherever it stands and whichever engine enforces it."""

from __future__ import annotations

import json

import pytest

from constrained.engines.auto import AutoGrammarBackend
from constrained.errors import TokenRejectedError
from constrained.spec import GrammarSpec

CASES = [
    (r"\(a\)", ["(a)"], ["x" * 28 + "a" + "x" * 29, "a"]),
    (r"a\.b\*", ["a.b*"], ["axb*", "a.bb"]),
    (r"[a-c]{2,4}-\d\d", ["ab-01", "abca-99"], ["a-01", "ab-1", "ab.01"]),
    (r"^\x41+$", ["A", "AA"], ["x41", "^A$"]),
    (r"\u{1F600}|é", ["é", "😀"], ["e", "u"]),
    (r"[^\s<]+", ["a.b"], ["<", "a b"]),
    (r".", ["a", "\r", "é"], ["\n", "ab"]),
    (r"\p{Lu}\d?", ["A", "Z9"], ["a", "pLu"]),
]


def _accepts(engines: AutoGrammarBackend, spec: GrammarSpec, text: str) -> bool:
    grammar = engines.compile(spec).grammar.copy()
    try:
        for byte in text.encode():
            grammar.accept_token(byte)
    except TokenRejectedError:
        return False
    return grammar.is_accepting()


@pytest.mark.parametrize("engine", ["llguidance", "xgrammar", "outlines", "structural tag"])
@pytest.mark.parametrize(("pattern", "taken", "refused"), CASES, ids=[case[0] for case in CASES])
def test_a_pattern_has_one_meaning(
    engines: AutoGrammarBackend, engine: str, pattern: str, taken: list[str], refused: list[str]
) -> None:
    spec = GrammarSpec(kind="regex", value=pattern, backend=engine)
    if engine == "structural tag":
        tag = {"type": "structural_tag", "format": {"type": "regex", "pattern": pattern}}
        spec = GrammarSpec(kind="structural_tag", value=json.dumps(tag))
    assert all(_accepts(engines, spec, text) for text in taken)
    assert not any(_accepts(engines, spec, text) for text in refused)


@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
def test_look_ahead_is_enforced(engines: AutoGrammarBackend, engine: str) -> None:
    spec = GrammarSpec(kind="regex", value=r"(?=.*\d)[a-z0-9]{3}", backend=engine)
    assert _accepts(engines, spec, "a1b")
    assert not _accepts(engines, spec, "abc")


PLACES = [
    (r"^(?!^foo)[a-z]+$", ["bar", "fo"], ["foofoo", ""]),
    (r"^(?!^(?:PRN|CON)$)[A-Z]{3}$", ["ABC"], ["PRN", "CON"]),
    (r"^(?!^0{8}$)\d{8}$", ["00000001"], ["00000000"]),
    (r"^(?!^\s+$)[\s\S]*$", ["", "a "], [" ", "\t "]),
    (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", ["1", "-0.5", ".5"], ["", "-", "."]),
    (r"^(?=^a)[a-z]*$", ["a", "ab"], ["", "ba"]),
    (r"^^a$$", ["a"], ["", "aa"]),
    (r"^(?:^a|(?:b|^)c)$", ["a", "bc", "c"], ["", "ac"]),
    (r"^(?:a|b$)*$", ["", "aab", "b"], ["ba", "bb"]),
    (r"\bfoo\b", ["foo", "a foo.", "-foo"], ["afoo", "foo1", "é_foo"]),
]


@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
@pytest.mark.parametrize(("pattern", "taken", "refused"), PLACES, ids=[case[0] for case in PLACES])
def test_an_assertion_holds_wherever_it_stands(
    engines: AutoGrammarBackend, engine: str, pattern: str, taken: list[str], refused: list[str]
) -> None:
    spec = GrammarSpec(kind="json_schema", value=json.dumps({"type": "string", "pattern": pattern}), backend=engine)
    assert [text for text in taken if not _accepts(engines, spec, json.dumps(text, ensure_ascii=False))] == []
    assert [text for text in refused if _accepts(engines, spec, json.dumps(text, ensure_ascii=False))] == []

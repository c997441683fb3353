"""Random patterns and texts: what the pattern compiler accepts is what a backtracking engine accepts.

``SCANSION_RANDOM_PATTERNS=20000`` tries that many patterns instead of the few of an ordinary run.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator

import pytest

from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.base import BaseGrammarObject
from constrained.errors import InvalidGrammarError, TokenRejectedError
from constrained.patterns.derivative import matches
from constrained.patterns.language import full_language, search_language
from constrained.patterns.parser import PatternUnsupportedError
from constrained.spec import GrammarSpec

EXAMPLES = int(os.environ.get("SCANSION_RANDOM_PATTERNS", "0"))
ALPHABET = "aab1_- .\né"
ATOMS = [
    "a", "b", "1", "_", "-", " ", ".", "[ab]", "[^a]", "[a-c1]", "[^]", r"\d", r"\w", r"\W", r"\s", r"\S", r"\.",
    r"[\w-]", r"\u00e9", r"[^\d\s]", r"\D",
]  # fmt: skip
ASSERTIONS = ["^", "$", r"\b", r"\B"]
QUANTIFIERS = ["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{1,}", "*?", "+?", "??"]


def random_pattern(choose: random.Random, depth: int = 3) -> str:
    """Everything that the compiler reads; assertions often."""
    options = [random_sequence(choose, depth) for _ in range(choose.choice([1, 1, 1, 2, 3]))]
    return "|".join(options)


def random_sequence(choose: random.Random, depth: int) -> str:
    return "".join(random_term(choose, depth) for _ in range(choose.choice([0, 1, 1, 2, 2, 3])))


def random_term(choose: random.Random, depth: int) -> str:
    what = choose.random()
    if what < 0.2:
        return choose.choice(ASSERTIONS)
    if what < 0.55 or depth == 0:
        atom = choose.choice(ATOMS)
    elif what < 0.7:
        return choose.choice(["(?=", "(?!"]) + random_pattern(choose, depth - 1) + ")"
    else:
        atom = choose.choice(["(", "(?:"]) + random_pattern(choose, depth - 1) + ")"
    # Of nested repetitions a backtracking engine tries every division.
    quantifiers = ["?", "??", "{2}"] if re.search(r"\(.*[*+}]", atom) else QUANTIFIERS
    return atom + (choose.choice(quantifiers) if choose.random() < 0.4 else "")


def patterns(count: int, seed: int) -> Iterator[tuple[str, list[str]]]:
    choose = random.Random(seed)
    for _ in range(count):
        texts = {"".join(choose.choices(ALPHABET, k=choose.choice([0, 1, 1, 2, 2, 3, 4, 6]))) for _ in range(16)}
        anchor = choose.choice(["", "", "^", "^^"]), choose.choice(["", "", "$", "$$"])
        yield random_pattern(choose).join(anchor), sorted(texts | {"", "a"})


# The same in Python, whose $ also stands before a last newline, and whose \B is not in the empty text. Nothing else in
# these patterns and texts means something else there.
_TO_PYTHON = {"$": r"\Z", ".": r"[^\n\r\u2028\u2029]", "[^]": r"[\s\S]", r"\B": r"(?!\b)"}
_READ_DIFFERENTLY = re.compile(r"\\u....|\\.|\[\^\]|\[[^\]]*\]|[$.]")


def expected(pattern: str, texts: list[str]) -> set[str]:
    """Texts in which ``re`` finds the pattern."""
    python = _READ_DIFFERENTLY.sub(lambda m: _TO_PYTHON.get(m.group(), m.group()), pattern)
    compiled = re.compile(python, re.ASCII)
    return {text for text in texts if compiled.search(text)}


def test_a_pattern_is_found_where_python_finds_it() -> None:
    served = 0
    for pattern, texts in patterns(EXAMPLES or 300, seed=1):
        try:
            language = search_language(pattern)
        except PatternUnsupportedError:
            continue
        served += 1
        assert {t for t in texts if matches(language, t)} == expected(pattern, texts), pattern
    assert served > (EXAMPLES or 300) * 0.8


def test_a_pattern_fits_a_whole_text_where_python_fits_it() -> None:
    for pattern, texts in patterns(EXAMPLES or 100, seed=2):
        try:
            language = full_language(pattern)
        except PatternUnsupportedError:
            continue
        assert {t for t in texts if matches(language, t)} == expected(f"^(?:{pattern})$", texts), pattern


@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
def test_an_engine_takes_the_strings_that_python_finds_it_in(engines: AutoGrammarBackend, engine: str) -> None:
    served = 0
    for pattern, texts in patterns(EXAMPLES // 10 or 50, seed=3):
        schema = json.dumps({"type": "string", "pattern": pattern})
        wanted = expected(pattern, texts)
        try:
            start = engines.compile(GrammarSpec(kind="json_schema", value=schema, backend=engine)).grammar
        except InvalidGrammarError as error:
            if wanted and "no value" in error.message:
                pytest.fail(f"{pattern} is called unsatisfiable and is not")
            continue
        served += 1
        assert {t for t in texts if takes(start, json.dumps(t, ensure_ascii=False))} == wanted, pattern
    assert served > 25


def takes(start: BaseGrammarObject, text: str) -> bool:
    grammar = start.copy()
    try:
        for byte in text.encode():
            grammar.accept_token(byte)
    except TokenRejectedError:
        return False
    return grammar.is_accepting()

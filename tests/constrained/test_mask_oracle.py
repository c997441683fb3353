"""Masks against a brute-force walk: a token is legal exactly when some text of the language goes on with it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable

import jsonschema
import numpy as np
import pytest

from constrained.compile.walk import legal_token_ids
from constrained.config import GrammarConfig
from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.base import BaseGrammarObject
from constrained.environment import GrammarEnvironment
from constrained.spec import GrammarSpec
from constrained.vocabulary import Vocabulary

ENGINES = ["xgrammar", "llguidance", "outlines"]
every_engine = pytest.mark.parametrize("engine", ENGINES)

REGEXES = [
    "a(b)?",
    "(ab|abc|b)*",
    "a{2,3}b?",
    "(a|b){1,2}c",
    "[abc]{0,2}",
    "(ab)*c|a+",
    "é?a",
    "(aa|a)(b|bb)",
]
ALPHABET = ["a", "b", "c", "é"]
MAX_CHARACTERS = 4

SCHEMAS: list[tuple[dict[str, object], list[object]]] = [
    ({"enum": ["a", "ab", 1, 12, True, None]}, ["a", "ab", "b", 1, 12, 2, True, False, None]),
    (
        {
            "type": "object",
            "properties": {"a": {"enum": [1, 12]}, "b": {"type": "boolean"}},
            "required": ["b"],
            "additionalProperties": False,
        },
        [{"a": a, "b": b} for a in (1, 12, 2) for b in (True, False)] + [{"b": True}, {"b": False}, {"a": 1}, {}],
    ),
    (
        {"type": "array", "items": {"enum": [1, 12]}, "minItems": 1, "maxItems": 2},
        [list(items) for n in range(4) for items in itertools.product((1, 12, 2), repeat=n)],
    ),
    (
        {"type": "object", "properties": {"a": {"const": "b"}}, "required": ["a"], "additionalProperties": False},
        [{"a": "b"}, {"a": "c"}],
    ),
]


@pytest.fixture(scope="module")
def compact() -> AutoGrammarBackend:
    """Bytes of the texts, and every pair and triple of them that is likely to cross a boundary."""
    singles = sorted({bytes([b]) for b in 'abcé{}[]",:12truefalsnl'.encode()})
    longer = [b"ab", b"bc", b"aa", b"abc", b"bb", b'{"', b'":', b'"a', b'a"', b"12", b"1,", b",1", b"[1", b"tru", b"e}"]
    tokens = (*singles, *longer, "é".encode(), b"<eos>", b"<other>")
    vocabulary = Vocabulary(tokens, frozenset({len(tokens) - 2, len(tokens) - 1}))
    config = GrammarConfig(json_whitespace="compact")
    return AutoGrammarBackend(GrammarEnvironment(vocabulary, len(tokens) + 5, (len(tokens) - 2,), config))


def assert_masks_agree(start: BaseGrammarObject, language: Iterable[str], bound: int) -> None:
    """Walk every reachable state whose text is shorter than ``bound`` bytes, comparing the whole mask."""
    texts = {text.encode() for text in language}
    prefixes = {text[:n] for text in texts for n in range(len(text) + 1)}
    environment = start.environment
    pending = [(start, b"")]
    seen = {b""}
    while pending:
        grammar, text = pending.pop()
        expected = np.zeros(environment.num_mask_words * 32, dtype=bool)
        for token_id, token in enumerate(environment.matchable_bytes):
            expected[token_id] = bool(token) and text + token in prefixes
        expected[environment.eos_token_ids[0]] = text in texts
        got = np.zeros_like(expected)
        got[legal_token_ids(grammar)] = True
        assert np.flatnonzero(got).tolist() == np.flatnonzero(expected).tolist(), text
        for token_id in np.flatnonzero(expected).tolist():
            following = text + environment.matchable_bytes[token_id]
            if following not in seen and len(following) < bound and environment.matchable_bytes[token_id]:
                seen.add(following)
                # A copy begins anew, so that each state is reached by a path of its own.
                state = grammar.copy()
                for byte in following:
                    state.accept_token(environment.matchable_bytes.index(bytes([byte])))
                pending.append((state, following))


def words_of(pattern: str, max_characters: int) -> list[str]:
    alphabet = [c for c in ALPHABET if c in pattern]
    texts = ("".join(t) for n in range(max_characters + 1) for t in itertools.product(alphabet, repeat=n))
    return [text for text in texts if re.fullmatch(pattern, text)]


@every_engine
@pytest.mark.parametrize("pattern", REGEXES)
def test_masks_of_a_regex_agree_with_brute_force(compact: AutoGrammarBackend, engine: str, pattern: str) -> None:
    grammar = compact.backend(engine).dispatch_regex(pattern).copy()
    # Two tokens of three characters beyond the bound are enough to see the end of every token.
    language = words_of(pattern, MAX_CHARACTERS + 5)
    assert_masks_agree(grammar, language, bound=MAX_CHARACTERS)


@every_engine
@pytest.mark.parametrize(("schema", "candidates"), SCHEMAS, ids=lambda value: json.dumps(value)[:30])
def test_masks_of_a_schema_agree_with_brute_force(
    compact: AutoGrammarBackend, engine: str, schema: dict[str, object], candidates: list[object]
) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    language = [json.dumps(value, separators=(",", ":")) for value in candidates if validator.is_valid(value)]
    grammar = compact.backend(engine).dispatch_json(json.dumps(schema)).copy()
    assert_masks_agree(grammar, language, bound=40)


@pytest.mark.parametrize(
    ("engine", "grammar"),
    [
        ("xgrammar", 'root ::= "a" root "b" | "c"'),
        ("llguidance", 'root ::= "a" root "b" | "c"'),
        ("llguidance", 'start: "a" start "b" | "c"'),
    ],
)
def test_masks_of_a_recursive_grammar_agree_with_brute_force(
    compact: AutoGrammarBackend, engine: str, grammar: str
) -> None:
    language = ["a" * n + "c" + "b" * n for n in range(8)]
    spec = GrammarSpec(kind="ebnf", value=grammar, backend=engine)
    assert_masks_agree(compact.compile(spec).grammar.copy(), language, bound=6)


def test_engines_write_one_layout_into_one_tensor(compact: AutoGrammarBackend) -> None:
    grammars = [compact.backend(engine).dispatch_regex("(ab|abc)c?").copy() for engine in ENGINES]
    mask = BaseGrammarObject.allocate_vocab_mask(compact.environment.vocab_size, len(grammars))
    BaseGrammarObject.fill_vocab_mask_batched(grammars, mask, range(len(grammars)))
    assert (mask == mask[0]).all()

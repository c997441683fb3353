"""Under ``auto`` a fault of one engine is no answer for the client while another engine serves the same texts."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from constrained.compile.protocol import CompileRefusal, CompileResult
from constrained.compile.worker import compile_and_walk
from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.base import BaseGrammarBackend, BaseGrammarObject
from constrained.environment import GrammarEnvironment
from constrained.errors import GrammarError, GrammarTooSlowError, InvalidGrammarError, TokenRejectedError
from constrained.spec import GrammarSpec
from constrained.vocabulary import Vocabulary

# Read otherwise by a translator that cuts tokens by rule.
EXACT = [
    'root ::= x "b"\nx ::= [a-z]*',
    'root ::= "a" root | "b" x\nx ::= [ab]* "b"',
    'root ::= ("a" | "ab") ("c" | "bc")',
    'root ::= item*\nitem ::= "a" root "b" | "ab" | "" # both',
    'root ::= a-b\na-b ::= "(" a-b ")" | [^()]{1,2} | "\\u00e9"+',
    'root ::= "" | "a" [\\x62\\-] {2} | ([b-]?){0,3} "\\n"',
    'root ::= root "a" | "b" | empty\nempty ::= ""',
]


def accepts(start: BaseGrammarObject, text: str) -> bool:
    grammar = start.copy()
    try:
        for byte in text.encode():
            grammar.accept_token(byte)
    except TokenRejectedError:
        return False
    return grammar.is_accepting()


@pytest.mark.parametrize("grammar", EXACT)
def test_an_ebnf_grammar_has_the_same_texts_under_both_engines(engines: AutoGrammarBackend, grammar: str) -> None:
    one, other = (
        engines.compile(GrammarSpec(kind="ebnf", value=grammar, backend=name)).grammar
        for name in ("xgrammar", "llguidance")
    )
    choose = random.Random(grammar)
    texts = {"".join(choose.choices("aabbc()-é\n", k=choose.randrange(7))) for _ in range(300)} | {"", "ab"}
    assert {text for text in texts if accepts(one, text)} == {text for text in texts if accepts(other, text)}


@pytest.mark.parametrize("grammar", ['root ::= "\\q"', "root ::= [b-a]", 'root ::= "a"{2}{3}', "root ::= 'b'"])
def test_llguidance_reads_no_ebnf_that_is_none(engines: AutoGrammarBackend, grammar: str) -> None:
    with pytest.raises(InvalidGrammarError, match=r"llguidance does not read|not defined"):
        engines.compile(GrammarSpec(kind="ebnf", value=grammar, backend="llguidance"))


def refusing(names: set[str], error: Exception, seen: list[str]):
    def try_out(engine: BaseGrammarBackend, grammar: BaseGrammarObject) -> None:
        seen.append(engine.name)
        if engine.name in names:
            raise error

    return try_out


@pytest.mark.parametrize(
    ("kind", "value", "order"),
    [
        ("ebnf", 'root ::= "a"', ["llguidance", "xgrammar"]),
        ("regex", "a", ["llguidance", "xgrammar"]),
        ("json_schema", '{"const": "a"}', ["llguidance", "xgrammar"]),
    ],
)
@pytest.mark.parametrize("error", [GrammarTooSlowError("slow"), TokenRejectedError("odd"), RuntimeError("broken")])
def test_what_the_first_engine_must_not_serve_the_second_does(
    engines: AutoGrammarBackend, kind: str, value: str, order: list[str], error: Exception
) -> None:
    seen: list[str] = []
    spec = GrammarSpec(kind=kind, value=value)  # type: ignore[arg-type]
    assert engines.compile(spec, refusing({order[0]}, error, seen)).backend == order[1]
    assert seen == order
    with pytest.raises(type(error)) as caught:
        engines.compile(spec, refusing(set(order), error, []))
    assert caught.value is error
    named = GrammarSpec(kind=kind, value=value, backend=order[0])  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        engines.compile(named, refusing({order[0]}, error, []))


JSON_WITH_BLANKS = r"""root ::= sp value sp
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" sp (string sp ":" sp value sp ("," sp string sp ":" sp value sp)*)? "}"
array ::= "[" sp (value sp ("," sp value sp)*)? "]"
string ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
sp ::= | " " | "\n" [ \t]{0,20}
"""


def test_no_clock_has_a_say_in_what_auto_serves(environment_with: Callable[..., GrammarEnvironment]) -> None:
    """However slow the machine: the engine asked first counts its work."""
    backend = AutoGrammarBackend(environment_with(max_mask_seconds=0.0))
    for _ in range(2):
        served = compile_and_walk(backend, GrammarSpec(kind="ebnf", value=JSON_WITH_BLANKS))
        assert isinstance(served, CompileResult)
        assert served.backend == "llguidance"


def test_a_mistake_in_the_constraint_is_told_without_asking_another_engine(
    engines: AutoGrammarBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AutoGrammarBackend, "_compile_with", None)
    with pytest.raises(GrammarError, match="unbalanced"):
        engines.compile(GrammarSpec(kind="regex", value="a)"))


def test_a_token_that_an_engine_masks_and_rejects_ends_with_the_other_engine() -> None:
    """xgrammar 0.2.9 masks every text of a class of characters of one and three bytes, repeated 129 times or more."""
    tokens = (*(bytes([i]) for i in range(256)), b"<eos>", *(f"In{i:x}".encode() for i in range(500)))
    vocabulary = Vocabulary(tokens, frozenset({256}))
    backend = AutoGrammarBackend(GrammarEnvironment(vocabulary, len(vocabulary), (256,)))
    grammar = "root ::= [A-Zぁ-ゖ]{0,200}"
    named = compile_and_walk(backend, GrammarSpec(kind="ebnf", value=grammar, backend="xgrammar"))
    assert isinstance(named, CompileRefusal), "the engine is mended: test another fault of it here"
    assert "does not fit the grammar" in named.message
    served = compile_and_walk(backend, GrammarSpec(kind="ebnf", value=grammar))
    assert isinstance(served, CompileResult)
    assert served.backend == "llguidance"


@pytest.mark.parametrize(
    ("grammar", "texts"),
    [
        ('root ::= "a" | x\nx ::= "b" x', {"a"}),
        ('root ::= "a" x? "c"\nx ::= "b" x', {"ac"}),
        ('root ::= "a" (x | "b")*\nx ::= x x', {"a", "ab"}),
    ],
)
def test_alternatives_that_never_end_are_left_out(
    compile_here: Callable[..., BaseGrammarObject], grammar: str, texts: set[str]
) -> None:
    start = compile_here("ebnf", grammar, "llguidance")
    assert {text for text in ("a", "ab", "ac", "bb", "") if accepts(start, text)} == texts

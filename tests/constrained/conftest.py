"""A small vocabulary with everything that makes matching hard, and the engines on it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from constrained.config import GrammarConfig
from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.base import BaseGrammarBackend, BaseGrammarObject, InvalidGrammarObject, create_grammar_backend
from constrained.environment import GrammarEnvironment
from constrained.spec import GrammarSpec
from constrained.thinking.reasoner_backend import ReasonerGrammarBackend
from constrained.vocabulary import Vocabulary

# Compile workers get this process's module search path and import the fake backends by name.
sys.path.insert(0, str(Path(__file__).parent))

EOS, OTHER_STOP, THINK_END = 256, 257, 258
TEXT_TOKENS = (
    b"ab", b"abc", b"bc", b'{"', b'":', b'"}', b"true", b"12", b", ", b"</", b"think", b">", b">\n", b">x",
    "é".encode(), "é".encode()[:1] + b"", b"aa", b"ba", b"11", b"[1", b'a"',
)  # fmt: skip
FIRST_TEXT_TOKEN = 259


def make_vocabulary() -> Vocabulary:
    """256 bytes, three special tokens, some longer tokens."""
    token_bytes = (*(bytes([b]) for b in range(256)), b"<eos>", b"<stop>", b"<end>", *TEXT_TOKENS)
    return Vocabulary(token_bytes, frozenset({EOS, OTHER_STOP, THINK_END}))


def make_environment(**options: Any) -> GrammarEnvironment:
    """A model three words wider than its tokenizer, of a size that is no multiple of 32."""
    vocabulary = make_vocabulary()
    return GrammarEnvironment(vocabulary, len(vocabulary) + 70, (EOS,), GrammarConfig(**options))


@pytest.fixture(scope="session")
def environment() -> GrammarEnvironment:
    return make_environment()


@pytest.fixture(scope="session")
def environment_with() -> Callable[..., GrammarEnvironment]:
    return make_environment


@pytest.fixture(scope="session")
def engines(environment: GrammarEnvironment) -> AutoGrammarBackend:
    """Compiles in this process."""
    return AutoGrammarBackend(environment)


@pytest.fixture(scope="session")
def compile_here(engines: AutoGrammarBackend) -> Callable[..., BaseGrammarObject]:
    """Compile in this process, as it is written: ``compile_here(kind, value, engine)`` gives a fresh copy."""

    def compile_spec(kind: Any, value: str, engine: str) -> BaseGrammarObject:
        grammar = engines.backend(engine)._init_value_dispatch(GrammarSpec(kind=kind, value=value))
        if isinstance(grammar, InvalidGrammarObject):
            raise grammar.error
        return grammar.copy()

    return compile_spec


@pytest.fixture(scope="session")
def pooled() -> Iterator[BaseGrammarBackend]:
    """A serving backend with real compile processes, small limits and the fake backends."""
    environment = make_environment(
        timeout=60.0,  # compile processes yield to whatever else runs
        compile_memory_bytes=512 << 20,
        max_compile_workers=4,
        plugins=("grammar_fake_backends",),
    )
    backend = create_grammar_backend(environment)
    assert isinstance(backend, ReasonerGrammarBackend)
    yield backend
    backend.shutdown()

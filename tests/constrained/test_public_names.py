"""The names of SGLang's grammar layer work from the package itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

import constrained
from constrained.environment import GrammarEnvironment
from constrained.errors import InvalidGrammarError
from constrained.spec import GrammarSpec, ReasoningSpec


@pytest.mark.parametrize("name", constrained.__all__)
def test_every_public_name_is_importable(name: str) -> None:
    assert getattr(constrained, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = constrained.Nothing


def test_the_names_work_together(environment: GrammarEnvironment) -> None:
    class Compiler:
        """Compiles in this process."""

        def submit(self, spec: GrammarSpec) -> object:
            from concurrent.futures import Future

            from constrained.compile.worker import compile_and_walk
            from constrained.engines.auto import AutoGrammarBackend

            future: Future[object] = Future()
            future.set_result(compile_and_walk(AutoGrammarBackend(environment), spec))
            return future

        def note_step(self) -> None: ...

        def shutdown(self) -> None: ...

    backend = constrained.create_grammar_backend(environment, compiler=Compiler())  # type: ignore[arg-type]
    assert isinstance(backend, constrained.ReasonerGrammarBackend)
    try:
        spec = GrammarSpec(kind="regex", value="ab")
        found, is_hit = backend.get_cached_or_future_value(spec)
        assert not is_hit
        grammar = found.result(10)  # type: ignore[union-attr]
        assert isinstance(grammar, constrained.BaseGrammarObject)
        grammar.accept_token(ord("a"))
        assert grammar.try_jump_forward() == ([], b"b")
        thinking = ReasoningSpec(think_end_ids=(258,), is_thinking=True)
        again, is_hit = backend.get_cached_or_future_value(spec, thinking)
        assert is_hit
        assert isinstance(again, constrained.ReasonerGrammarObject)
    finally:
        backend.shutdown()
    error = InvalidGrammarError("no")
    assert constrained.InvalidGrammarObject(environment, error).error_message == "no"


def test_the_specification_alone_loads_no_engine() -> None:
    program = "import constrained.spec, sys; print(sorted({'torch', 'xgrammar', 'llguidance'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""What the layer itself gets wrong on the way ends the request at once, as the server's fault, and is logged."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from test_grammar_manager import FakeCompiler, FakeRequest, Manager, ready, request

from constrained.compile.service import CompileService
from constrained.engines.llguidance_backend import LLGuidanceObject
from constrained.environment import GrammarEnvironment
from constrained.errors import GrammarEngineError
from constrained.spec import ReasoningSpec
from constrained.thinking.reasoner_backend import ReasonerGrammarBackend


class Panic(BaseException):
    """Like pyo3's, which is no Exception."""


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*arguments: object, **options: object) -> Any:
        raise error

    return fail


class Layer:
    """A manager with a compiler that does as it is told, on a disk cache."""

    def __init__(self, environment: GrammarEnvironment) -> None:
        self.compiler = FakeCompiler(environment)
        self.manager = Manager(environment, compiler=self.compiler)
        backend = self.manager.grammar_backend
        assert isinstance(backend, ReasonerGrammarBackend)
        assert backend.service is not None
        self.backend = backend
        self.service: CompileService = backend.service
        self.engine: Any = self.service._backends.backend("llguidance")

    def ask(self, pattern: str = "ab", **fields: Any) -> FakeRequest:
        """A request that has left the queue."""
        one = request("r", pattern, **fields)
        known = len(self.compiler.futures)
        if self.manager.process_req_with_grammar(one):
            deadline = time.monotonic() + 5
            while len(self.compiler.futures) == known and not self.manager._queue[0].future.done():
                assert time.monotonic() < deadline
                time.sleep(0.001)
            if len(self.compiler.futures) > known and not self.compiler.futures[-1][1].done():
                self.compiler.finish()
            assert ready(self.manager) == [one]
        return one


@pytest.fixture
def layer(environment_with: Callable[..., GrammarEnvironment], tmp_path: Path):
    layer = Layer(environment_with(timeout=30.0, disk_cache=tmp_path))
    yield layer
    layer.manager.shutdown()


def assert_servers_fault(one: FakeRequest, caplog: pytest.LogCaptureFixture, name: str) -> None:
    assert one.grammar is None
    assert isinstance(one.grammar_error, GrammarEngineError)
    assert (one.grammar_error.status, one.grammar_error.code) == (500, "grammar_failed")
    assert name in str(one.grammar_error)
    assert [r for r in caplog.records if r.levelno == logging.ERROR and r.exc_info and name in str(r.exc_info[0])]


def break_reading(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer.engine, "deserialize", raising(RuntimeError("out of luck")))


def break_reading_with_a_panic(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer.engine, "deserialize", raising(Panic("attempt to subtract with overflow")))


def break_copying(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LLGuidanceObject, "copy", raising(RuntimeError("no copy")))


def break_the_disk(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer.service._disk, "get", raising(RuntimeError("disk")))


def break_submitting(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer.compiler, "submit", raising(RuntimeError("no compiler")))


def break_the_compile(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(spec: object) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(RuntimeError("inside"))
        return future

    monkeypatch.setattr(layer.compiler, "submit", submit)


def break_looking_up(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer.service, "_refusal", raising(RuntimeError("on the loop")))


BREAKS = [
    (break_reading, "RuntimeError"),
    (break_reading_with_a_panic, "Panic"),
    (break_copying, "RuntimeError"),
    (break_the_disk, "RuntimeError"),
    (break_submitting, "RuntimeError"),
    (break_the_compile, "RuntimeError"),
    (break_looking_up, "RuntimeError"),
]


@pytest.mark.parametrize(("break_it", "name"), BREAKS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_fault_on_the_way_is_told_at_once(
    layer: Layer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, break_it: Any, name: str
) -> None:
    started = time.monotonic()
    with monkeypatch.context() as broken:
        break_it(layer, broken)
        assert_servers_fault(layer.ask(), caplog, name)
    assert time.monotonic() - started < 5
    assert layer.ask().grammar is not None, "the next request is served: the fault is not remembered"


def test_a_fault_while_a_thinking_request_is_wrapped_is_told_at_once(
    layer: Layer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(layer.backend, "wrap", raising(RuntimeError("no wrapper")))
    thinking = ReasoningSpec(think_end_ids=(258,), is_thinking=True)
    assert_servers_fault(layer.ask(reasoning=thinking), caplog, "RuntimeError")


def test_a_fault_in_copying_a_cached_grammar_is_told_at_once(
    layer: Layer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert layer.ask().grammar is not None
    with monkeypatch.context() as broken:
        break_copying(layer, broken)
        assert_servers_fault(layer.ask(), caplog, "RuntimeError")
    assert layer.ask().grammar is not None


def test_what_the_disk_holds_is_compiled_again_when_reading_it_fails_in_any_way(
    layer: Layer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    assert layer.ask().grammar is not None
    deadline = time.monotonic() + 5
    while not list(tmp_path.glob("*.grammar")):  # written behind the answer
        assert time.monotonic() < deadline
        time.sleep(0.001)
    layer.service.reset()
    whole = layer.engine.deserialize
    failures = [Panic("once")]
    monkeypatch.setattr(
        layer.engine, "deserialize", lambda payload: raising(failures.pop())() if failures else whole(payload)
    )
    assert layer.ask().grammar is not None
    assert len(layer.compiler.futures) == 2
    assert "compiled again" in caplog.text

"""The grammar queue: nobody waits in it for ever, and ranks agree on who leaves."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from constrained.compile.protocol import CompileResult
from constrained.compile.walk import legal_token_ids
from constrained.engines.auto import AutoGrammarBackend
from constrained.environment import GrammarEnvironment
from constrained.errors import GrammarError, GrammarServiceUnavailableError, InvalidGrammarError
from constrained.queue.manager import GrammarManager
from constrained.spec import GrammarSpec, ReasoningSpec
from constrained.thinking.reasoner import ReasonerGrammarObject

EOS = 256


@dataclass
class FakeRequest:
    request_id: str
    grammar_spec: GrammarSpec | None
    reasoning: ReasoningSpec | None = None
    stop_ids: frozenset[int] = frozenset()
    grammar: Any = None
    grammar_error: GrammarError | None = None


@dataclass
class FakeCompiler:
    environment: GrammarEnvironment
    futures: list[tuple[GrammarSpec, Future[CompileResult]]] = field(default_factory=list)

    def submit(self, spec: GrammarSpec) -> Future[CompileResult]:
        future: Future[CompileResult] = Future()
        self.futures.append((spec, future))
        return future

    def finish(self, index: int = -1) -> None:
        spec, future = self.futures[index]
        engine = AutoGrammarBackend(self.environment).backend("llguidance")
        payload = engine.serialize(engine.dispatch_regex(spec.value))
        future.set_result(CompileResult("llguidance", payload, 1, 0.001))

    def fail(self, index: int = -1, error: Exception | None = None) -> None:
        self.futures[index][1].set_exception(error or InvalidGrammarError("refused", pointer="/properties/a"))

    def note_step(self) -> None:
        pass

    def shutdown(self) -> None:
        pass


Manager = GrammarManager[FakeRequest]
Make = Callable[..., tuple[Manager, FakeCompiler]]


@pytest.fixture
def make(environment_with: Callable[..., GrammarEnvironment]) -> Make:
    managers: list[Manager] = []

    def build(*, all_gather=None, is_timekeeper: bool = True, **options) -> tuple[Manager, FakeCompiler]:
        environment = environment_with(**options)
        compiler = FakeCompiler(environment)
        manager = Manager(environment, compiler=compiler, all_gather=all_gather, is_timekeeper=is_timekeeper)
        managers.append(manager)
        return manager, compiler

    yield build
    for manager in managers:
        manager.shutdown()


def request(name: str = "r", pattern: str = "ab", **fields: Any) -> FakeRequest:
    return FakeRequest(name, GrammarSpec(kind="regex", value=pattern), **fields)


def wait_readable(manager: Manager, seconds: float = 5.0) -> bool:
    return bool(select.select([manager], [], [], seconds)[0])


def ready(manager: Manager) -> list[FakeRequest]:
    """Block on the event as the loop does until someone leaves."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        wait_readable(manager, deadline - time.monotonic())
        leaving = manager.get_ready_grammar_requests()
        if leaving:
            return leaving
    raise AssertionError("nobody left the queue")


def test_a_request_without_a_grammar_is_not_queued(make: Make) -> None:
    manager, _ = make()
    assert manager.process_req_with_grammar(FakeRequest("r", None)) is False


def test_a_queued_request_leaves_with_its_grammar_when_the_event_says_so(make: Make) -> None:
    manager, compiler = make()
    req = request(stop_ids=frozenset({257}))
    assert manager.process_req_with_grammar(req)
    assert manager.get_ready_grammar_requests() == []
    assert not wait_readable(manager, 0.0)
    compiler.finish()
    assert ready(manager) == [req]
    req.grammar.accept_token(259)
    assert legal_token_ids(req.grammar).tolist() == [EOS, 257]
    assert req.grammar.grammar_stats.queue_seconds > 0
    assert len(manager) == 0


def test_a_cached_grammar_needs_no_queue(make: Make) -> None:
    manager, compiler = make()
    manager.process_req_with_grammar(request("first"))
    compiler.finish()
    ready(manager)
    second = request("second")
    assert manager.process_req_with_grammar(second) is False
    assert second.grammar.grammar_stats.is_cache_hit


def test_a_refused_grammar_is_an_error_with_its_pointer(make: Make) -> None:
    manager, compiler = make()
    req = request()
    manager.process_req_with_grammar(req)
    compiler.fail()
    assert ready(manager) == [req]
    assert req.grammar is None
    assert str(req.grammar_error) == "refused (at /properties/a)"
    assert req.grammar_error.status == 400


@pytest.mark.parametrize(
    ("error", "status"), [(GrammarServiceUnavailableError("no process starts"), 503), (RuntimeError("a bug"), 500)]
)
def test_what_is_the_servers_fault_is_not_called_the_clients(make: Make, error: Exception, status: int) -> None:
    manager, compiler = make()
    req = request()
    manager.process_req_with_grammar(req)
    compiler.fail(error=error)
    assert ready(manager) == [req]
    assert req.grammar is None
    assert req.grammar_error.status == status


def test_a_late_grammar_is_an_error_that_has_its_code_and_ends_its_compile(make: Make) -> None:
    manager, compiler = make(timeout=0.2)
    req = request()
    started = time.monotonic()
    manager.process_req_with_grammar(req)
    assert ready(manager) == [req]
    assert 0.2 <= time.monotonic() - started < 5.0
    assert req.grammar_error.code == "grammar_timeout"
    assert req.grammar is None
    assert compiler.futures[0][1].cancelled()
    assert manager.metrics.counters["grammar_timeouts_total"] == 1
    again = request("again")
    assert manager.process_req_with_grammar(again), "a time-out is not remembered"


def test_an_aborted_request_ends_a_compile_that_nobody_else_waits_for(make: Make) -> None:
    manager, compiler = make()
    first, second, other = request("first"), request("second"), request("other", "x")
    for req in (first, second, other):
        manager.process_req_with_grammar(req)
    manager.abort_requests(["first"])
    assert not compiler.futures[0][1].cancelled()
    manager.abort_requests(["second"])
    assert compiler.futures[0][1].cancelled()
    assert not compiler.futures[1][1].cancelled()
    assert len(manager) == 1


def test_clear_empties_queue_and_cache(make: Make) -> None:
    manager, compiler = make()
    manager.process_req_with_grammar(request("first"))
    compiler.finish()
    ready(manager)
    manager.process_req_with_grammar(request("second", "x"))
    manager.clear()
    assert len(manager) == 0
    assert compiler.futures[1][1].cancelled()
    assert manager.process_req_with_grammar(request("third")) is True


def test_the_backend_none_refuses_every_constrained_request(make: Make) -> None:
    manager, _ = make(backend="none")
    req = request()
    assert manager.process_req_with_grammar(req) is False
    assert "without grammars" in str(req.grammar_error)


def test_a_thinking_request_gets_a_wrapped_grammar(make: Make) -> None:
    manager, compiler = make()
    req = request(reasoning=ReasoningSpec(think_end_ids=(258,), is_thinking=True))
    manager.process_req_with_grammar(req)
    compiler.finish()
    ready(manager)
    assert isinstance(req.grammar, ReasonerGrammarObject)


def test_an_impossible_marker_is_an_error_not_a_crash(make: Make) -> None:
    manager, _ = make()
    req = request(reasoning=ReasoningSpec(think_end_ids=(), is_thinking=True))
    assert manager.process_req_with_grammar(req) is False
    assert "marker" in str(req.grammar_error)


class Ranks:
    """Several managers in lockstep: an all-gather gives everyone the flags of all."""

    def __init__(self, make: Make, count: int, **options: Any) -> None:
        self.mine: list[torch.Tensor] = []
        self.built = [make(all_gather=self.all_gather, is_timekeeper=rank == 0, **options) for rank in range(count)]
        self.requests = [[request(f"r{i}", f"a{{{i + 1}}}") for i in range(3)] for _ in range(count)]
        for (manager, _), requests in zip(self.built, self.requests, strict=True):
            for req in requests:
                assert manager.process_req_with_grammar(req)

    def all_gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """First pass: collect; second pass: answer with everyone's."""
        self.mine.append(mine.clone())
        if len(self.mine) <= len(self.built):
            raise _OneMoreRankError
        return self.mine[: len(self.built)]

    def step(self) -> list[list[str]]:
        self.mine = []
        for manager, _ in self.built:
            with pytest.raises(_OneMoreRankError):
                manager.get_ready_grammar_requests()
        return [[req.request_id for req in manager.get_ready_grammar_requests()] for manager, _ in self.built]


class _OneMoreRankError(Exception):
    pass


def settle() -> None:
    time.sleep(0.1)


def test_a_request_runs_only_when_every_rank_has_its_grammar(make: Make) -> None:
    ranks = Ranks(make, 3)
    for _, compiler in ranks.built[:2]:
        compiler.finish(0)
    settle()
    assert ranks.step() == [[], [], []]
    ranks.built[2][1].finish(0)
    settle()
    assert ranks.step() == [["r0"], ["r0"], ["r0"]]
    assert all(requests[0].grammar is not None for requests in ranks.requests)


def test_a_grammar_that_fails_on_one_rank_fails_on_all(make: Make) -> None:
    ranks = Ranks(make, 3)
    ranks.built[1][1].fail(1)
    ranks.built[0][1].finish(1)
    settle()
    assert ranks.step() == [["r1"], ["r1"], ["r1"]]
    assert all(requests[1].grammar is None and requests[1].grammar_error for requests in ranks.requests)
    assert [len(manager) for manager, _ in ranks.built] == [2, 2, 2]


def test_one_ranks_clock_ends_a_late_request_on_all(make: Make) -> None:
    ranks = Ranks(make, 2, timeout=0.15)
    ranks.built[1][1].finish(2)
    time.sleep(0.3)
    assert ranks.step() == [["r0", "r1", "r2"]] * 2
    assert all(req.grammar is None and req.grammar_error for requests in ranks.requests for req in requests)


def test_a_rank_with_a_cached_grammar_waits_for_the_others(make: Make) -> None:
    ranks = Ranks(make, 2)
    for _, compiler in ranks.built:
        compiler.finish(0)
    settle()
    ranks.step()
    late = [request("late", "a{1}") for _ in ranks.built]
    ranks.built[1][0].grammar_backend.reset()
    for (manager, _), req in zip(ranks.built, late, strict=True):
        assert manager.process_req_with_grammar(req)
    settle()
    assert ranks.step() == [[], []]
    ranks.built[1][1].finish()
    settle()
    assert ranks.step() == [["late"], ["late"]]


def test_stop_tokens_that_leave_no_first_token_are_refused_before_the_answer(make: Make) -> None:
    manager, compiler = make()
    every_start = frozenset({ord("a"), *range(259, 280)})
    req = request(pattern="ab", stop_ids=every_start)
    assert manager.process_req_with_grammar(req)
    compiler.finish()
    assert ready(manager) == [req]
    assert req.grammar is None
    assert (req.grammar_error.status, req.grammar_error.field) == (400, "stop_token_ids")


def test_stop_tokens_that_leave_a_first_token_are_taken(make: Make) -> None:
    manager, compiler = make()
    req = request(pattern="ab", stop_ids=frozenset({ord("a")}))
    assert manager.process_req_with_grammar(req)
    compiler.finish()
    assert ready(manager) == [req]
    assert req.grammar is not None, "one token spells both letters"

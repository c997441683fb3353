"""Caches, and one compile for identical specifications."""

from __future__ import annotations

import errno
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from constrained.compile.protocol import CompileResult
from constrained.compile.service import CompileService
from constrained.compile.walk import legal_token_ids
from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.base import BaseGrammarObject, InvalidGrammarObject
from constrained.environment import GrammarEnvironment
from constrained.errors import GrammarTimeoutError, InvalidGrammarError
from constrained.spec import GrammarSpec


class FakeCompiler:
    """Compiles here, when told to."""

    def __init__(self, engines: AutoGrammarBackend) -> None:
        self.engines = engines
        self.submitted: list[tuple[GrammarSpec, Future[CompileResult]]] = []

    def submit(self, spec: GrammarSpec) -> Future[CompileResult]:
        future: Future[CompileResult] = Future()
        self.submitted.append((spec, future))
        return future

    def finish(self, index: int = -1) -> None:
        spec, future = self.submitted[index]
        engine = self.engines.backend("llguidance")
        try:
            compiled = engine.dispatch_regex(spec.value)
        except InvalidGrammarError as error:
            future.set_exception(error)
            return
        future.set_result(CompileResult("llguidance", engine.serialize(compiled), compiled.size_bytes, 0.001))

    def note_step(self) -> None:
        pass

    def shutdown(self) -> None:
        pass


def regex(value: str) -> GrammarSpec:
    return GrammarSpec(kind="regex", value=value)


@pytest.fixture
def make(
    environment_with: Callable[..., GrammarEnvironment],
) -> Callable[..., tuple[CompileService, FakeCompiler]]:
    def build(**options) -> tuple[CompileService, FakeCompiler]:
        environment = environment_with(**options)
        engines = AutoGrammarBackend(environment)
        compiler = FakeCompiler(engines)
        return CompileService(environment, engines, compiler), compiler

    return build


def waiting(service: CompileService, spec: GrammarSpec) -> Future[BaseGrammarObject]:
    value, is_hit = service.get(spec)
    assert isinstance(value, Future)
    assert not is_hit
    return value


def cached(service: CompileService, spec: GrammarSpec) -> BaseGrammarObject:
    value, is_hit = service.get(spec)
    assert isinstance(value, BaseGrammarObject)
    assert is_hit
    return value


def test_identical_specifications_compile_once(make) -> None:
    service, compiler = make()
    futures = [waiting(service, regex("a+")) for _ in range(5)]
    assert len(compiler.submitted) == 1
    compiler.finish()
    grammars = [future.result(5) for future in futures]
    assert len({id(grammar) for grammar in grammars}) == 5
    grammars[0].accept_token(ord("a"))
    assert not grammars[1].is_accepting()
    assert [g.grammar_stats.joined_compile for g in grammars] == [False, True, True, True, True]
    assert service.metrics.counters["grammar_single_flight_joins_total"] == 4


def test_a_known_specification_is_ready_at_once_and_starts_anew(make) -> None:
    service, compiler = make()
    future = waiting(service, regex("ab"))
    compiler.finish()
    future.result(5).accept_token(ord("a"))
    grammar = cached(service, regex("ab"))
    assert grammar.grammar_stats.is_cache_hit
    assert legal_token_ids(grammar).tolist() == [ord("a"), 259]
    started = time.perf_counter()
    for _ in range(20):
        cached(service, regex("ab"))
    assert (time.perf_counter() - started) / 20 < 0.001
    assert len(compiler.submitted) == 1


def test_the_compile_lives_until_its_last_waiter_leaves(make) -> None:
    service, compiler = make()
    first, second = waiting(service, regex("a")), waiting(service, regex("a"))
    compile_future = compiler.submitted[0][1]
    first.cancel()
    assert not compile_future.cancelled()
    second.cancel()
    assert compile_future.cancelled()
    third = waiting(service, regex("a"))
    assert len(compiler.submitted) == 2
    compiler.finish()
    assert third.result(5)


def test_a_waiter_that_left_does_not_stop_the_others(make) -> None:
    service, compiler = make()
    first, second = waiting(service, regex("a")), waiting(service, regex("a"))
    first.cancel()
    compiler.finish()
    assert second.result(5).forced_bytes() == b"a"


def test_a_refusal_is_remembered(make) -> None:
    service, compiler = make()
    future = waiting(service, regex("a("))
    compiler.finish()
    assert isinstance(future.result(5), InvalidGrammarObject)
    again = cached(service, regex("a("))
    assert isinstance(again, InvalidGrammarObject)
    assert "regular expression" in again.error_message


def test_a_time_out_is_not_remembered_as_invalid(make) -> None:
    service, compiler = make()
    future = waiting(service, regex("a"))
    compiler.submitted[0][1].set_exception(GrammarTimeoutError("late"))
    grammar = future.result(5)
    assert isinstance(grammar, InvalidGrammarObject)
    assert grammar.error_message == "late"
    assert service.metrics.counters["grammar_timeouts_total"] == 1
    assert service.metrics.counters["grammar_invalid_total"] == 0
    waiting(service, regex("a"))
    assert len(compiler.submitted) == 2


def test_the_memory_cache_is_bounded_in_bytes(make) -> None:
    service, compiler = make(cache_bytes=300_000)
    for index in range(12):
        future = waiting(service, regex(f"a{{{index + 1}}}"))
        compiler.finish()
        future.result(5)
        assert 0 < service.metrics.cache_bytes <= 300_000
    assert 0 < service.metrics.counters["grammar_cache_evictions_total"] < 12
    assert cached(service, regex("a{12}"))
    waiting(service, regex("a{1}"))


def test_a_specification_beyond_the_size_limit_never_reaches_a_compiler(make) -> None:
    service, compiler = make(max_spec_bytes=100)
    grammar = cached(service, regex("a" * 101))
    assert isinstance(grammar, InvalidGrammarObject)
    assert "100 bytes" in grammar.error_message
    assert compiler.submitted == []


def test_reset_forgets_what_is_cached(make) -> None:
    service, compiler = make()
    future = waiting(service, regex("a"))
    compiler.finish()
    future.result(5)
    service.reset()
    assert service.metrics.cache_bytes == 0
    assert service.metrics.counters["grammar_cache_evictions_total"] == 0
    waiting(service, regex("a"))


def test_a_cached_grammar_whose_lexer_is_spent_is_compiled_again(make) -> None:
    service, compiler = make()
    future = waiting(service, regex("a+"))
    compiler.finish()
    future.result(5).start.is_spent = True
    future = waiting(service, regex("a+"))
    compiler.finish()
    assert not future.result(5).is_spent
    assert cached(service, regex("a+")).forced_bytes() == b"a"
    assert len(compiler.submitted) == 2


def test_shutdown_answers_everyone_who_waits(make) -> None:
    service, _ = make()
    future = waiting(service, regex("a"))
    service.shutdown()
    assert "shutting down" in future.result(5).error_message


def wait_for_compile(compiler: FakeCompiler, count: int = 1) -> None:
    deadline = time.monotonic() + 5
    while len(compiler.submitted) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def compile_once(make, folder: Path, spec: GrammarSpec, **options) -> None:
    service, compiler = make(disk_cache=folder, **options)
    future = waiting(service, spec)
    wait_for_compile(compiler)
    compiler.finish()
    future.result(5)
    service.shutdown()


def test_a_restart_does_not_compile_again(make, tmp_path: Path) -> None:
    compile_once(make, tmp_path / "cache", regex("abc"))
    service, compiler = make(disk_cache=tmp_path / "cache")
    grammar = waiting(service, regex("abc")).result(5)
    assert grammar.forced_bytes() == b"abc"
    assert compiler.submitted == []
    assert service.metrics.counters["grammar_disk_cache_hits_total"] == 1


def test_the_disk_cache_depends_on_the_servers_options(make, tmp_path: Path) -> None:
    compile_once(make, tmp_path, regex("abc"))
    service, compiler = make(disk_cache=tmp_path, json_whitespace="compact")
    waiting(service, regex("abc"))
    wait_for_compile(compiler)


@pytest.mark.parametrize("damage", [b"", b"garbage", pickle.dumps({"a": 1}), None])
def test_a_damaged_file_is_compiled_again_and_never_unpickled(make, tmp_path: Path, damage: bytes | None) -> None:
    compile_once(make, tmp_path, regex("abc"))
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"?" if damage is None else damage)
    service, compiler = make(disk_cache=tmp_path)
    future = waiting(service, regex("abc"))
    wait_for_compile(compiler)
    compiler.finish()
    assert future.result(5).forced_bytes() == b"abc"


def read_only(*arguments: object, **options: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_read_only_disk_cache_serves_what_it_has(
    make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    compile_once(make, tmp_path, regex("abc"))
    if is_damaged:
        (file,) = tmp_path.iterdir()
        file.write_bytes(b"garbage")
    for name in ("utime", "unlink", "replace"):
        monkeypatch.setattr(f"os.{name}", read_only)
    monkeypatch.setattr("tempfile.mkstemp", read_only)
    service, compiler = make(disk_cache=tmp_path)
    future = waiting(service, regex("abc"))
    if is_damaged:
        wait_for_compile(compiler)
        compiler.finish()
    assert future.result(5).forced_bytes() == b"abc"
    assert len(compiler.submitted) == is_damaged


def test_a_cached_grammar_whose_engine_refuses_it_is_compiled_again_even_if_it_cannot_be_removed(
    make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, compiler = make(disk_cache=tmp_path)
    assert service._disk is not None
    service._disk.put(regex("abc"), CompileResult("llguidance", b"of another version", 18, 0.001))
    monkeypatch.setattr("os.unlink", read_only)
    future = waiting(service, regex("abc"))
    wait_for_compile(compiler)
    compiler.finish()
    assert future.result(5).forced_bytes() == b"abc"


def test_the_disk_cache_removes_nothing_but_its_own_files(make, tmp_path: Path) -> None:
    for name in ("notes.txt", "mine.grammar"):
        (tmp_path / name).write_bytes(b"x" * 1000)
    left = tmp_path / ("a" * 64 + ".grammar.killed")
    left.write_bytes(b"x" * 1000)
    compile_once(make, tmp_path, regex("abc"), disk_cache_bytes=600)
    assert (tmp_path / "notes.txt").exists()
    assert (tmp_path / "mine.grammar").exists()
    assert not left.exists()


def test_the_disk_cache_is_bounded_and_drops_what_was_used_longest_ago(make, tmp_path: Path) -> None:
    for index in range(6):
        compile_once(make, tmp_path, regex(f"a{{{index + 10}}}"), disk_cache_bytes=600)
        time.sleep(0.01)
    files = list(tmp_path.iterdir())
    assert sum(file.stat().st_size for file in files) <= 600
    assert not [file for file in files if file.suffix != ".grammar"]
    service, compiler = make(disk_cache=tmp_path, disk_cache_bytes=600)
    assert waiting(service, regex("a{15}")).result(5)
    assert compiler.submitted == []


def test_many_threads_asking_for_one_specification_share_one_compile(make) -> None:
    service, compiler = make()
    results: list[Future[BaseGrammarObject]] = []
    threads = [threading.Thread(target=lambda: results.append(waiting(service, regex("ab")))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiler.submitted) == 1
    compiler.finish()
    masks = [legal_token_ids(future.result(5)) for future in results]
    assert all(np.array_equal(mask, masks[0]) for mask in masks)

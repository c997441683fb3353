"""Compile processes: bounded, killable, replaced. Each failure costs its own request and nothing else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from constrained.compile.pool import CompilePool
from constrained.compile.process import CompileProcess, Job
from constrained.compile.protocol import Ready
from constrained.compile.zygote import _Zygote
from constrained.compile.zygote_client import ZygoteGoneError
from constrained.config import GrammarConfig
from constrained.engines.auto import AutoGrammarBackend
from constrained.environment import GrammarEnvironment
from constrained.errors import (
    GrammarCompilerCrashedError,
    GrammarDisplacedError,
    GrammarError,
    GrammarServiceUnavailableError,
    GrammarTimeoutError,
    GrammarTooLargeError,
    GrammarTooMuchWorkError,
    InvalidGrammarError,
)
from constrained.spec import GrammarSpec
from constrained.stats import GrammarMetrics


def regex(value: str, backend: str = "llguidance") -> GrammarSpec:
    return GrammarSpec(kind="regex", value=value, backend=backend)


@pytest.fixture(scope="module")
def metrics() -> GrammarMetrics:
    return GrammarMetrics()


@pytest.fixture(scope="module")
def pool(environment_with: Callable[..., GrammarEnvironment], metrics: GrammarMetrics) -> Iterator[CompilePool]:
    environment = environment_with(
        timeout=2.0, compile_memory_bytes=512 << 20, max_compile_workers=4, plugins=("grammar_fake_backends",)
    )
    pool = CompilePool(environment, metrics)
    assert pool.submit(regex("warm")).result(60).backend == "llguidance"
    yield pool
    pool.shutdown()


def assert_serves(pool: CompilePool) -> None:
    assert pool.submit(regex(f"next{time.monotonic_ns()}")).result(10).payload


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance", "outlines"])
def test_a_grammar_comes_back_packed(pool: CompilePool, engines, backend: str) -> None:
    result = pool.submit(regex("ab+", backend)).result(10)
    assert result.backend == backend
    assert engines.backend(backend).deserialize(result.payload).copy().forced_bytes() == b"ab"


def test_a_wrong_specification_is_a_permanent_refusal(pool: CompilePool) -> None:
    with pytest.raises(InvalidGrammarError, match=r"[Pp]aren|unclosed|regular expression"):
        pool.submit(regex("a(b")).result(10)
    with pytest.raises(InvalidGrammarError, match="there are: auto, "):
        pool.submit(regex("a", "nonesuch")).result(10)


def test_a_segfault_costs_one_request(pool: CompilePool) -> None:
    with pytest.raises(GrammarCompilerCrashedError, match="SIGSEGV"):
        pool.submit(regex("x", "segfault")).result(10)
    assert_serves(pool)


def test_a_death_by_a_signal_without_a_name_costs_one_request(pool: CompilePool) -> None:
    with pytest.raises(GrammarCompilerCrashedError, match=r"\(signal \d+\)"):
        pool.submit(regex("x", "real-time-signal")).result(5)
    assert_serves(pool)


def test_a_memory_bomb_costs_one_request(pool: CompilePool) -> None:
    with pytest.raises(GrammarTooLargeError, match="more than 512 MiB"):
        pool.submit(regex("x", "memory-bomb")).result(10)
    assert_serves(pool)


def test_an_exception_that_nobody_foresaw_is_the_servers_fault_and_is_logged(
    pool: CompilePool, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(GrammarError, match="KeyError") as caught:
        pool.submit(regex("x", "raising")).result(10)
    assert (caught.value.status, caught.value.code) == (500, "grammar_failed")
    assert "KeyError" in caplog.text
    assert "grammar_fake_backends.py" in caplog.text, "the trace shows the place"
    assert_serves(pool)


def test_a_grammar_that_is_ready_is_not_lost_with_the_process_that_its_worker_came_from(
    small_pool: CompilePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(pid: int) -> None:
        raise ZygoteGoneError

    # A worker in the idle class is replaced after its job, and the order to end it meets a zygote that has died.
    future = small_pool.submit(regex("0.3", "busy"))
    with monkeypatch.context() as broken:
        broken.setattr(small_pool._zygote, "kill", gone)
        assert future.result(5).payload
        assert_serves(small_pool)


def test_an_answer_that_makes_no_sense_is_told_at_once(
    small_pool: CompilePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(data: bytes) -> object:
        raise RecursionError("deep")

    with monkeypatch.context() as broken:
        broken.setattr("constrained.compile.pool.decode_reply", decode)
        with pytest.raises(GrammarCompilerCrashedError, match="answered nonsense: deep"):
            small_pool.submit(regex("a")).result(5)
    assert_serves(small_pool)


def test_an_endless_compile_is_killed_at_its_deadline_and_delays_nobody(pool: CompilePool) -> None:
    started = time.monotonic()
    endless = [pool.submit(regex(str(i), "endless")) for i in range(2)]
    time.sleep(0.3)
    assert_serves(pool)
    assert not any(future.done() for future in endless), "the other compile waited for their end"
    for future in endless:
        with pytest.raises((GrammarTimeoutError, GrammarTooMuchWorkError)):
            future.result(10)
    assert time.monotonic() - started < 4.0


@pytest.mark.parametrize(("cpu_seconds", "status"), [(27.0, 400), (9.0, 503)], ids=["alone", "on a busy machine"])
def test_only_a_grammar_that_had_a_core_for_its_time_is_to_blame(
    monkeypatch: pytest.MonkeyPatch, cpu_seconds: float, status: int
) -> None:
    worker = CompileProcess(0, socket.socket(), pid=1)
    with worker.connection:
        monkeypatch.setattr(CompileProcess, "cpu_used", lambda self: cpu_seconds)
        error = worker.overdue(GrammarConfig(timeout=30.0))
    assert error.status == status
    assert error.is_permanent is (status == 400), "only what would be the same again is remembered"


def test_a_compile_of_a_fifth_of_a_second_keeps_the_normal_priority(pool: CompilePool) -> None:
    idle = lambda: {p for p in pool.worker_pids() if os.path.exists(f"/proc/{p}") and os.sched_getscheduler(p)}  # noqa: E731
    before = idle()  # what the tests before left to be reaped
    future = pool.submit(regex("0.2", "busy"))
    while not future.done():
        assert idle() <= before
        time.sleep(0.005)
    assert future.result().payload


@pytest.fixture
def small_pool(environment_with: Callable[..., GrammarEnvironment]) -> Iterator[CompilePool]:
    environment = environment_with(
        timeout=60.0, max_compile_workers=3, displace_after_seconds=0.5, plugins=("grammar_fake_backends",)
    )
    pool = CompilePool(environment, GrammarMetrics())
    assert pool.submit(regex("warm")).result(60).payload
    yield pool
    pool.shutdown()


def test_endless_compiles_in_every_place_hold_up_nobody(small_pool: CompilePool) -> None:
    endless = [small_pool.submit(regex(str(i), "endless")) for i in range(3)]
    wait_until(lambda: len(small_pool.worker_pids()) == 3)
    time.sleep(0.3)
    before = time.monotonic()
    assert_serves(small_pool)
    assert time.monotonic() - before < 5.0  # the deadline is a minute away
    with pytest.raises(GrammarDisplacedError, match="try again later") as caught:
        next(future for future in endless if future.done()).result(0)
    assert caught.value.status == 503
    assert not caught.value.is_permanent
    assert sum(future.done() for future in endless) == 1, "one place is enough for one request"
    for future in endless:
        future.cancel()
    assert_serves(small_pool)


def test_the_compile_that_used_most_cpu_makes_room_for_one_that_has_waited_as_long(
    small_pool: CompilePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cpu_used(worker: CompileProcess) -> float:
        return 2.0 if worker.job is not None and worker.job.spec.value == "hungry" else 1.0

    monkeypatch.setattr(CompileProcess, "cpu_used", cpu_used)
    endless = {name: small_pool.submit(regex(name, "endless")) for name in ("first", "hungry", "last")}
    wait_until(lambda: len(small_pool.worker_pids()) == 3)
    time.sleep(1.0)  # each has had its time: no place comes free sooner for a request that has just come
    before = time.monotonic()
    assert_serves(small_pool)
    assert time.monotonic() - before >= 0.5
    assert [name for name, future in endless.items() if future.done()] == ["hungry"]
    for future in endless.values():
        future.cancel()


def test_a_slow_compile_that_gets_little_of_a_core_keeps_its_place_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = CompileProcess(0, ours, pid=1, job=Job(regex("x"), Future()), is_demoted=True)
        for cpu_seconds, ripe_after in ((0.1, 10.0), (0.5, 2.0)):
            monkeypatch.setattr(worker, "cpu_used", lambda used=cpu_seconds: used)
            assert not worker.has_had_its_time(ripe_after - 0.1, 2.0)
            assert worker.has_had_its_time(ripe_after, 2.0)


def test_endless_compiles_keep_their_places_while_nobody_waits(small_pool: CompilePool) -> None:
    endless = [small_pool.submit(regex(str(i), "endless")) for i in range(3)]
    time.sleep(1.5)
    assert not any(future.done() for future in endless)
    for future in endless:
        future.cancel()


def test_a_compile_that_takes_its_time_falls_to_the_idle_class(pool: CompilePool) -> None:
    future = pool.submit(regex("idle", "endless"))
    idle = lambda pid: os.path.exists(f"/proc/{pid}") and os.sched_getscheduler(pid) == os.SCHED_IDLE  # noqa: E731
    wait_until(lambda: any(idle(pid) for pid in pool.worker_pids()), 1.5)
    assert any(not idle(pid) for pid in pool.worker_pids())
    future.cancel()


def test_a_slow_compile_runs_a_quarter_of_the_time_while_answers_are_written() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = CompileProcess(0, ours, pid=1, job=Job(regex("x"), Future()), is_demoted=True)
        paused_steps = 0
        for step in range(4000):
            worker.takes_turns(step * 0.01, is_decoding=True)
            paused_steps += worker.is_paused
        assert 0.7 < paused_steps / 4000 < 0.8
        for step in range(4000, 4100):
            worker.takes_turns(step * 0.01, is_decoding=False)
        assert not worker.is_paused
        assert not any(worker.takes_turns(50 + step * 0.01, is_decoding=False) for step in range(100))


def test_a_slow_compile_stops_for_answers_and_goes_on_after_them(small_pool: CompilePool) -> None:
    future = small_pool.submit(regex("turns", "endless"))

    def num_stopped() -> int:
        states = [
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in small_pool.worker_pids()
        ]
        return states.count("T")

    def stops_while_decoding() -> bool:
        small_pool.note_step()
        return num_stopped() == 1

    wait_until(stops_while_decoding, 10)
    assert_serves(small_pool)
    wait_until(lambda: num_stopped() == 0, 2)
    time.sleep(0.5)
    assert num_stopped() == 0
    small_pool.note_step()
    wait_until(stops_while_decoding, 2)
    future.cancel()
    wait_until(lambda: num_stopped() == 0, 2)  # it has ended, stopped as it was


def test_cancelling_kills_the_compile(pool: CompilePool, metrics: GrammarMetrics) -> None:
    cancelled = metrics.counters["grammar_compiles_cancelled_total"]
    before = set(pool.worker_pids())
    future = pool.submit(regex("30", "slow"))
    time.sleep(0.2)
    assert future.cancel()
    wait_until(lambda: metrics.counters["grammar_compiles_cancelled_total"] == cancelled + 1)
    wait_until(lambda: any(not os.path.exists(f"/proc/{pid}") for pid in before))
    assert_serves(pool)


def test_a_worker_killed_from_outside_costs_its_request_and_is_replaced(pool: CompilePool) -> None:
    assert_serves(pool)
    wait_until(lambda: len(pool.worker_pids()) >= 2)
    victims = pool.worker_pids()
    futures = [pool.submit(regex(f"1.5{index}", "slow")) for index in range(len(victims))]
    time.sleep(0.2)
    os.kill(victims[0], signal.SIGKILL)
    errors = [future.exception(10) for future in futures]
    assert [type(error) for error in errors if error is not None] == [GrammarCompilerCrashedError]
    wait_until(lambda: victims[0] not in pool.worker_pids() and len(pool.worker_pids()) >= 2)
    assert_serves(pool)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_the_process_that_workers_are_forked_from_has_one_thread(pool: CompilePool) -> None:
    # A fork copies the locks of other threads as they are, and not the threads that would open them.
    assert_serves(pool)
    zygote = parent_of(pool.worker_pids()[0])
    assert len(os.listdir(f"/proc/{zygote}/task")) == 1


def test_losing_the_process_that_forks_workers_loses_no_request(pool: CompilePool) -> None:
    assert_serves(pool)
    future = pool.submit(regex("0.5", "slow"))
    time.sleep(0.1)
    os.kill(parent_of(pool.worker_pids()[0]), signal.SIGKILL)
    assert future.result(60).payload


def test_shutdown_ends_every_process_and_answers_every_request(
    environment_with: Callable[..., GrammarEnvironment],
) -> None:
    pool = CompilePool(environment_with(plugins=("grammar_fake_backends",)))
    assert_serves_slowly = pool.submit(regex("first")).result(60)
    assert assert_serves_slowly.payload
    running = pool.submit(regex("30", "slow"))
    pids = pool.worker_pids()
    pool.shutdown()
    with pytest.raises(GrammarServiceUnavailableError):
        running.result(5)
    with pytest.raises(GrammarServiceUnavailableError):
        pool.submit(regex("late")).result(5)
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


def test_a_pool_that_is_still_starting_ends_at_once(environment: GrammarEnvironment) -> None:
    pool = CompilePool(environment)
    time.sleep(0.2)
    started = time.monotonic()
    pool.shutdown()
    assert time.monotonic() - started < 1.0


def test_a_process_that_gets_ready_for_nobody_ends_silently(engines: AutoGrammarBackend) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    with ours, pytest.raises(SystemExit) as leaving:
        _Zygote(ours, engines)._say(Ready())
    assert leaving.value.code is None


def test_a_zygote_leaves_quietly_when_its_last_message_was_never_read(engines: AutoGrammarBackend) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    zygote = _Zygote(ours, engines)
    zygote._say(Ready())
    theirs.close()
    assert zygote._obey() is False
    ours.close()


_ORPHAN_MAKER = """
import os, sys
sys.path[:] = {path!r}
from conftest import make_environment
from constrained.engines.auto import AutoGrammarBackend
from constrained.compile.pool import CompilePool
from constrained.compile.protocol import Ready
from constrained.compile.zygote import _Zygote
from constrained.spec import GrammarSpec
pool = CompilePool(make_environment())
pool.submit(GrammarSpec(kind="regex", value="a", backend="llguidance")).result(60)
print(*pool.worker_pids(), flush=True)
os._exit(1)
"""


def test_workers_die_with_their_parent(tmp_path: Path) -> None:
    path = [str(Path(__file__).parent), *sys.path]
    code = _ORPHAN_MAKER.format(path=path)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    pids = [int(pid) for pid in done.stdout.split()]
    assert pids, done.stderr
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


def test_a_process_that_is_still_starting_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "slow_plugin.py").write_text(
        "import pathlib, time\npathlib.Path(__file__).with_name('begun').touch()\ntime.sleep(60)\n"
    )
    code = (
        "import sys, time; from conftest import make_environment; "
        "from constrained.compile.zygote_client import ZygoteClient; "
        "client = ZygoteClient(make_environment(plugins=('slow_plugin',))); client.start(); "
        "print(client._process.pid, flush=True); time.sleep(60)"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parent), *sys.path])
    environ = os.environ | {"PYTHONPATH": path}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environ) as parent:
        assert parent.stdout is not None
        zygote = int(parent.stdout.readline())
        deadline = time.monotonic() + 60
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        parent.kill()
    deadline = time.monotonic() + 10
    while _is_running(zygote):
        assert time.monotonic() < deadline, "it outlived its parent"
        time.sleep(0.02)


def _is_running(pid: int) -> bool:
    """A process whose parent reaps nobody stays as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

"""The supervisor, with small processes in place of the scheduler and the HTTP process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

FAKE_SERVER = Path(__file__).parent / "fake_server.py"


class FakeServer:
    def __init__(self, folder: Path, scheduler: str, http: str, drain_timeout: float) -> None:
        self.folder = folder
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(FAKE_SERVER), str(folder), scheduler, http, str(drain_timeout)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, start_new_session=True,
            )  # fmt: skip

    def wait_for(self, name: str) -> None:
        wait_until((self.folder / name).exists, f"{name} did not appear:\n{self.text()}")

    def pid(self, name: str) -> int:
        path = self.folder / f"{name}.pid"
        wait_until(lambda: path.exists() and bool(path.read_text()), f"{name} did not start:\n{self.text()}")
        return int(path.read_text())

    def wait_for_new_pid(self, name: str, old: int) -> int:
        wait_until(lambda: self.pid(name) != old, f"{name} was not started again:\n{self.text()}")
        return self.pid(name)

    def text(self) -> str:
        return self.log.read_text()

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


def wait_until(condition: Callable[[], bool], otherwise: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)


@pytest.fixture
def fake_server(tmp_path: Path) -> Iterator[Callable[..., FakeServer]]:
    started: list[FakeServer] = []

    def start(scheduler: str = "works", http: str = "works", drain_timeout: float = 10.0) -> FakeServer:
        started.append(FakeServer(tmp_path, scheduler, http, drain_timeout))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()


def test_a_dead_scheduler_is_restarted_after_its_cause_is_logged(fake_server: Callable[..., FakeServer]) -> None:
    server = fake_server()
    server.wait_for("ready")
    old, http = server.pid("scheduler"), server.pid("http-0")
    (server.folder / "crash-scheduler").touch()
    server.wait_for_new_pid("scheduler", old)
    wait_until(lambda: "ready again" in server.text(), "no word of the new scheduler")
    log = server.text()
    assert f"scheduler (process {old}) died: exited with code 7" in log
    assert log.index("died") < log.index("restarting scheduler now") < log.index("ready again")
    assert server.pid("http-0") == http


def test_a_killed_http_process_is_restarted(fake_server: Callable[..., FakeServer]) -> None:
    server = fake_server()
    server.wait_for("ready")
    old, scheduler = server.pid("http-0"), server.pid("scheduler")
    os.kill(old, signal.SIGKILL)
    server.wait_for_new_pid("http-0", old)
    assert server.pid("scheduler") == scheduler
    assert "was killed by SIGKILL" in server.text()


def test_a_scheduler_that_hangs_is_killed_and_restarted(fake_server: Callable[..., FakeServer]) -> None:
    server = fake_server(scheduler="beats")
    server.wait_for("ready")
    old = server.pid("scheduler")
    time.sleep(1.5)
    assert server.pid("scheduler") == old, "one that gives signs of life is left alone"
    os.kill(old, signal.SIGSTOP)
    server.wait_for_new_pid("scheduler", old)
    assert f"scheduler (process {old}) died: it did nothing for 1 s and was killed" in server.text()


def test_a_server_that_was_stopped_as_a_whole_goes_on_as_if_nothing_was(fake_server: Callable[..., FakeServer]) -> None:
    server = fake_server(scheduler="beats")
    server.wait_for("ready")
    old = server.pid("scheduler")
    os.killpg(server.process.pid, signal.SIGSTOP)  # as Ctrl-Z in a terminal
    time.sleep(2.5)
    os.killpg(server.process.pid, signal.SIGCONT)
    time.sleep(0.5)
    assert server.pid("scheduler") == old
    assert "died" not in server.text()


def test_a_process_that_keeps_crashing_ends_the_server_with_the_cause(fake_server: Callable[..., FakeServer]) -> None:
    server = fake_server(scheduler="always crashes")
    assert server.process.wait(30) == 3
    assert "died too often" in server.text()
    assert "exited with code 7" in server.text().splitlines()[-1]
    assert server.text().count("restarting scheduler") == 4


def test_a_rank_that_dies_takes_its_group_along_and_no_other(fake_server: Callable[..., FakeServer]) -> None:
    server = fake_server(scheduler="works+works|works+works")
    server.wait_for("ready")
    ranks = [f"scheduler-{group} rank {rank}" for group in (0, 1) for rank in (0, 1)]
    old = {name: server.pid(name) for name in ranks}
    os.kill(old[ranks[1]], signal.SIGKILL)
    for name in ranks[:2]:
        server.wait_for_new_pid(name, old[name])
    wait_until(lambda: "scheduler-0 is ready again" in server.text(), "no word of the new ranks")
    assert [server.pid(name) for name in ranks[2:]] == [old[name] for name in ranks[2:]]
    assert not psutil.pid_exists(old[ranks[0]])
    log = server.text()
    assert f"scheduler-0 rank 1 (process {old[ranks[1]]}) died: was killed by SIGKILL" in log
    assert log.count("died:") == log.count("restarting") == 1


def test_a_rank_that_hangs_takes_its_group_along(fake_server: Callable[..., FakeServer]) -> None:
    server = fake_server(scheduler="beats+beats")
    server.wait_for("ready")
    old = [server.pid(f"scheduler rank {rank}") for rank in (0, 1)]
    os.kill(old[1], signal.SIGSTOP)
    for rank in (0, 1):
        server.wait_for_new_pid(f"scheduler rank {rank}", old[rank])
    assert f"scheduler rank 1 (process {old[1]}) died: it did nothing for 1 s and was killed" in server.text()


@pytest.mark.parametrize("schedulers", ["works+fails", "fails+loads for ever"])
def test_one_rank_that_cannot_load_ends_the_start(fake_server: Callable[..., FakeServer], schedulers: str) -> None:
    server = fake_server(scheduler=schedulers)
    assert server.process.wait(20) == 1
    assert server.text().splitlines()[-1] == "scansion: the weights are written in invisible ink"


def test_a_rank_that_never_gets_ready_ends_the_start(fake_server: Callable[..., FakeServer]) -> None:
    server = fake_server(scheduler="works+hangs while loading")
    assert server.process.wait(20) == 1
    last = server.text().splitlines()[-1]
    assert last == "scansion: the scheduler rank 1 process was not ready within 3 s and was killed"


def test_a_group_that_keeps_crashing_does_not_end_a_server_with_another(
    fake_server: Callable[..., FakeServer],
) -> None:
    server = fake_server(scheduler="works|always crashes")
    server.wait_for("ready")
    wait_until(lambda: "restarting scheduler-1 in 60 s" in server.text(), "it was given up", seconds=60)
    assert server.process.poll() is None
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(10) == 0


def test_ranks_that_cannot_load_again_are_tried_as_often_as_crashes(fake_server: Callable[..., FakeServer]) -> None:
    server = fake_server(scheduler="works+fails the second time")
    server.wait_for("ready")
    (server.folder / "crash-scheduler rank 0").touch()
    assert server.process.wait(30) == 3
    assert server.text().count("restarting scheduler") == 4
    assert "the scheduler rank 1 process died too often" in server.text()


def test_a_load_failure_is_one_message_and_no_restart(fake_server: Callable[..., FakeServer]) -> None:
    server = fake_server(scheduler="fails")
    assert server.process.wait(20) == 1
    assert server.text().splitlines()[-1] == "scansion: the weights are written in invisible ink"
    assert "Traceback" not in server.text()
    assert "restarting" not in server.text()


def test_dying_while_starting_is_not_retried(fake_server: Callable[..., FakeServer]) -> None:
    server = fake_server(scheduler="dies while starting")
    assert server.process.wait(20) == 1
    assert "the scheduler process was killed by SIGKILL" in server.text()
    assert "ran out of memory" in server.text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_drains_http_first_and_refuses_new_clients(
    fake_server: Callable[..., FakeServer], number: signal.Signals
) -> None:
    server = fake_server(http="drains")
    server.wait_for("ready")
    server.process.send_signal(number)
    wait_until(lambda: "letting running requests end" in server.text(), server.text())
    # The HTTP process here holds no copy of the listener, so the supervisor's was the last.
    port = int((server.folder / "port").read_text())
    wait_until(lambda: is_refused(port), "new clients are kept waiting while the server drains")
    assert not (server.folder / "scheduler.stopped").exists()
    (server.folder / "release").touch()
    assert server.process.wait(20) == 0
    assert (server.folder / "scheduler.stopped").exists()


def is_refused(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


def test_a_second_signal_stops_at_once(fake_server: Callable[..., FakeServer]) -> None:
    server = fake_server(http="drains", drain_timeout=60)
    server.wait_for("ready")
    children = server.descendants()
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "letting running requests end" in server.text(), server.text())
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(5) == 128 + signal.SIGTERM
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []


def test_a_process_that_ignores_sigterm_is_killed_after_the_drain_timeout(
    fake_server: Callable[..., FakeServer],
) -> None:
    server = fake_server(http="hangs", drain_timeout=-9.8)  # the supervisor adds ten seconds of grace
    server.wait_for("ready")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(10) == 0
    assert "http-0 did not stop within" in server.text()


def test_stopping_while_loading_does_not_wait_for_the_load(fake_server: Callable[..., FakeServer]) -> None:
    server = fake_server(scheduler="loads for ever")
    server.pid("scheduler")
    server.pid("http-0")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(5) == 0
    assert "SIGTERM: stopping" in server.text()
    assert "requests" not in server.text()


@pytest.mark.parametrize("http", ["works", "hangs"])
def test_no_process_outlives_a_killed_supervisor(fake_server: Callable[..., FakeServer], http: str) -> None:
    server = fake_server(http=http)
    server.wait_for("ready")
    children = server.descendants()
    assert len(children) >= 2
    server.process.kill()
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []


def test_ctrl_c_in_the_terminal_reaches_only_the_supervisor(fake_server: Callable[..., FakeServer]) -> None:
    server = fake_server(http="drains")
    server.wait_for("ready")
    os.killpg(server.process.pid, signal.SIGINT)  # as a terminal does
    wait_until(lambda: "letting running requests end" in server.text(), server.text())
    assert "KeyboardInterrupt" not in server.text()
    assert all(child.is_running() for child in server.descendants())
    (server.folder / "release").touch()
    assert server.process.wait(20) == 0


def test_an_idle_supervisor_uses_no_cpu(fake_server: Callable[..., FakeServer]) -> None:
    server = fake_server()
    server.wait_for("ready")
    process = psutil.Process(server.process.pid)
    before = process.cpu_times()
    time.sleep(0.5)
    after = process.cpu_times()
    assert after.user + after.system - before.user - before.system <= 0.02

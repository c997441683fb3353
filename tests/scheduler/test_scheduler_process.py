"""The process itself: start, a request over ZMQ, drain, failure, and the death of its parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from byte_model import EOS, write_byte_model

from model_runner.config import RunnerConfig
from model_runner.errors import ModelLoadError
from sampling.params import SamplingParams
from scheduler.config import SchedulerConfig
from scheduler.messages import (
    Admitted,
    FromScheduler,
    GenerateRequest,
    GetStats,
    Hello,
    Rejected,
    SchedulerReady,
    SchedulerStats,
    StepOutput,
    ToScheduler,
    decode_from_scheduler,
    encode,
)
from scheduler.process import run_scheduler

CONTEXT = multiprocessing.get_context("spawn")
HEARTBEAT = StepOutput(outputs=[])


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_model(tmp_path_factory.mktemp("model"))


@dataclass
class Running:
    process: BaseProcess
    status: Connection
    socket: zmq.Socket[bytes]

    def send(self, message: ToScheduler) -> None:
        self.socket.send(encode(message))

    def receive(self) -> FromScheduler:
        while True:
            assert self.socket.poll(30_000), "no answer"
            message = decode_from_scheduler(self.socket.recv())
            if message != HEARTBEAT:
                return message

    def wait_until_ready(self) -> list[tuple[object, ...]]:
        stages = []
        while True:
            assert self.status.poll(60), "no word from the scheduler"
            stages.append(self.status.recv())
            if stages[-1][0] in ("ready", "failed"):
                return stages


def start(model_folder: Path, endpoint: str, **options: object) -> tuple[BaseProcess, Connection]:
    receiver, sender = CONTEXT.Pipe(duplex=False)
    runner = RunnerConfig(
        model_path=model_folder, load_format="dummy", dtype="float32", device="cpu", num_threads=1, kv_cache_tokens=1024
    )
    process = CONTEXT.Process(
        target=run_scheduler,
        args=(
            SchedulerConfig(endpoint=endpoint, **options),  # type: ignore[arg-type]
            runner,
            None,
            (EOS,),
            model_folder / "tokenizer.json",
            sender,
        ),
    )
    process.start()
    sender.close()
    return process, receiver


@pytest.fixture(scope="module")
def running(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    endpoint = f"ipc://{tmp_path_factory.mktemp('socket')}/s"
    process, status = start(model_folder, endpoint, heartbeat_interval=0.2)
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(endpoint)
    running = Running(process, status, socket)
    assert running.wait_until_ready()[-1][0] == "ready"
    yield running
    context.destroy(linger=0)
    if process.is_alive():
        process.kill()
    process.join()


def run_with_a_build_that_tells_the_environment(*arguments: Any) -> None:
    def build(*_: object, **__: object) -> None:
        has_torch = "torch" in sys.modules
        raise ModelLoadError(f"{os.environ['OMP_WAIT_POLICY']}, {os.environ['OMP_NUM_THREADS']}, torch: {has_torch}")

    for name in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS"):
        os.environ.pop(name, None)
    stand_in = types.ModuleType("scheduler.build")
    stand_in.build = build  # type: ignore[attr-defined]
    sys.modules["scheduler.build"] = stand_in
    run_scheduler(*arguments)


def test_compute_threads_are_told_to_sleep_before_torch_is_imported(model_folder: Path) -> None:
    receiver, sender = CONTEXT.Pipe(duplex=False)
    runner = RunnerConfig(model_path=model_folder, num_threads=3)
    process = CONTEXT.Process(
        target=run_with_a_build_that_tells_the_environment,
        args=(SchedulerConfig(endpoint="ipc:///unused"), runner, None, (EOS,), model_folder / "tokenizer.json", sender),
    )
    process.start()
    assert receiver.poll(60)
    assert receiver.recv() == ("failed", "passive, 3, torch: False")
    process.join()


def generate(request_id: str, **sampling: object) -> GenerateRequest:
    params = SamplingParams(**{"max_tokens": 8, "temperature": 0.0, "ignore_eos": True, **sampling})  # type: ignore[arg-type]
    return GenerateRequest(request_id=request_id, prompt_token_ids=[1, 2, 3], sampling=params, stream=True)


def test_a_request_is_served_over_the_socket(running: Running) -> None:
    running.send(Hello())
    ready = running.receive()
    assert isinstance(ready, SchedulerReady)
    assert (ready.context_length, ready.kv_cache_tokens, ready.dtype) == (2048, 1024, "float32")
    running.send(generate("a"))
    assert running.receive() == Admitted(request_id="a")
    tokens: list[int] = []
    finish = None
    while finish is None:
        message = running.receive()
        assert isinstance(message, StepOutput)
        (output,) = message.outputs
        tokens += output.token_ids
        finish = output.finish
    assert len(tokens) == 8
    assert finish.reason == "length"


def test_an_idle_process_uses_no_cpu(running: Running) -> None:
    running.send(GetStats(call_id=1))
    assert isinstance(running.receive(), SchedulerStats)
    process = psutil.Process(running.process.pid)
    time.sleep(0.5)
    before = process.cpu_times()
    time.sleep(2)
    after = process.cpu_times()
    assert (after.user + after.system) - (before.user + before.system) < 0.1


def test_everyone_hears_that_an_idle_process_lives(running: Running) -> None:
    os.kill(running.process.pid, signal.SIGSTOP)
    try:
        while running.status.poll(0.5):
            assert running.status.recv() == ("alive",)
        while running.socket.poll(500):
            running.socket.recv()
    finally:
        os.kill(running.process.pid, signal.SIGCONT)
    assert running.status.poll(10), "the parent hears nothing"
    assert running.status.recv() == ("alive",)
    assert running.socket.poll(10_000), "the HTTP process hears nothing"
    assert decode_from_scheduler(running.socket.recv()) == HEARTBEAT


def test_interrupts_are_the_parents_to_handle(running: Running) -> None:
    assert running.process.pid is not None
    os.kill(running.process.pid, signal.SIGINT)
    running.send(GetStats(call_id=2))
    assert isinstance(running.receive(), SchedulerStats)


def test_a_terminate_signal_finishes_what_runs_and_refuses_what_comes(running: Running) -> None:
    running.send(generate("long", max_tokens=600))
    assert running.receive() == Admitted(request_id="long")
    assert isinstance(running.receive(), StepOutput)
    running.process.terminate()
    time.sleep(0.05)
    running.send(generate("late"))
    count, finish, refused = 0, None, None
    while finish is None:
        message = running.receive()
        if isinstance(message, Rejected):
            refused = message
            continue
        assert isinstance(message, StepOutput)
        finish = message.outputs[0].finish
        count += 1
    assert finish.usage.completion_tokens == 600
    assert refused is not None
    assert refused.error.status == 503
    running.process.join(20)
    assert running.process.exitcode == 0


def test_a_model_that_cannot_be_loaded_is_told_to_the_parent(tmp_path: Path, model_folder: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Nonsense"], "model_type": "nonsense"}')
    (tmp_path / "tokenizer.json").write_bytes((model_folder / "tokenizer.json").read_bytes())
    process, status = start(tmp_path, f"ipc://{tmp_path}/s")
    words = []
    while not words or words[-1][0] != "failed":
        assert status.poll(60)
        words.append(status.recv())
    assert words[-1][1]
    process.join(20)
    assert process.exitcode == 1


def _parent(model_folder: Path, endpoint: str, pid_out: Connection) -> None:
    process, status = start(model_folder, endpoint)
    while status.recv()[0] != "ready":
        pass
    pid_out.send(process.pid)
    time.sleep(60)


def test_the_process_dies_with_its_killed_parent(model_folder: Path, tmp_path: Path) -> None:
    receiver, sender = CONTEXT.Pipe(duplex=False)
    parent = CONTEXT.Process(target=_parent, args=(model_folder, f"ipc://{tmp_path}/s", sender))
    parent.start()
    assert receiver.poll(90)
    pid = receiver.recv()
    assert _runs(pid)
    parent.kill()
    parent.join()
    deadline = time.monotonic() + 10
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """A container's first process may leave the dead unburied: they do not run."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

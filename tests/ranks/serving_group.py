"""Scheduler processes that are the ranks of a group, and one HTTP process's socket to rank 0."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import zmq
from byte_model import EOS

from constrained.config import GrammarConfig
from model_runner.config import RankConfig, RunnerConfig
from sampling.params import SamplingParams
from scheduler.config import SchedulerConfig
from scheduler.messages import (
    FromScheduler,
    GenerateRequest,
    StepOutput,
    ToScheduler,
    decode_from_scheduler,
    encode,
)
from scheduler.process import run_scheduler

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["scheduler.build"])  # importing torch once instead of in every rank of every test
HEARTBEAT = StepOutput(outputs=[])


@dataclass
class Member:
    process: BaseProcess
    status: Connection
    log: Path

    def last_word(self, timeout: float = 90.0) -> tuple[object, ...]:
        """Ready, or failed."""
        while True:
            assert self.status.poll(timeout), "no word from a rank"
            word = self.status.recv()
            if word[0] in ("ready", "failed"):
                return word

    def exit_code(self, timeout: float) -> int | None:
        self.process.join(timeout)
        return self.process.exitcode

    def log_lines(self) -> list[str]:
        return self.log.read_text().splitlines()


class ServingGroup:
    """Ranks over gloo on 127.0.0.1; settings of single ranks in ``overrides``."""

    def __init__(
        self,
        model_folder: Path,
        folder: Path,
        size: int = 2,
        overrides: dict[int, dict[str, Any]] | None = None,
        grammars: bool = True,
        draft: bool = False,
        **config: Any,
    ) -> None:
        self.endpoint = f"ipc://{folder}/s"
        self.members: list[Member] = []
        runner = RunnerConfig(
            model_path=model_folder,
            load_format="dummy",
            dtype="float32",
            device="cpu",
            num_threads=1,
            kv_cache_tokens=1024,
        )
        with socket.create_server(("127.0.0.1", 0)) as listener:
            for rank in range(size):
                place = RankConfig(
                    rank=rank,
                    size=size,
                    local_rank=rank,
                    host="127.0.0.1",
                    port=listener.getsockname()[1],
                    listener=listener if rank == 0 else None,
                    timeout=20.0,
                    start_timeout=60.0,
                    checks_plans=True,
                )
                scheduler = SchedulerConfig(endpoint=self.endpoint, **config)
                scheduler = replace(scheduler, **(overrides or {}).get(rank, {}))
                log = folder / f"rank{rank}.log"
                receiver, sender = CONTEXT.Pipe(duplex=False)
                grammar = GrammarConfig(compile_workers=1) if grammars else None
                draft_runner = runner if draft else None
                process = CONTEXT.Process(
                    target=_run_rank,
                    args=(scheduler, runner, model_folder, sender, grammar, draft_runner, place, log),
                )
                process.start()
                sender.close()
                self.members.append(Member(process, receiver, log))
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(self.endpoint)

    def wait_until_ready(self) -> None:
        for member in self.members:
            word = member.last_word()
            assert word[0] == "ready", word

    def send(self, message: ToScheduler) -> None:
        self._socket.send(encode(message))

    def receive(self, timeout: float = 30.0) -> FromScheduler:
        while True:
            assert self._socket.poll(int(timeout * 1000)), "no answer"
            message = decode_from_scheduler(self._socket.recv())
            if message != HEARTBEAT:
                return message

    def silence(self, seconds: float) -> bool:
        """Whether nothing but heartbeats comes for so long."""
        deadline = time.monotonic() + seconds
        while self._socket.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            if decode_from_scheduler(self._socket.recv()) != HEARTBEAT:
                return False
        return True

    def terminate(self) -> None:
        """SIGTERM to all, as a supervisor sends it."""
        for member in self.members:
            member.process.terminate()

    def kill(self, rank: int) -> None:
        pid = self.members[rank].process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        self._context.destroy(linger=0)
        for member in self.members:
            if member.process.is_alive():
                member.process.kill()
            member.process.join()


def generate(request_id: str, prompt: bytes = b"abc", **fields: Any) -> GenerateRequest:
    """Bytes are tokens."""
    message = {name: fields.pop(name) for name in ("grammar", "stream", "prediction_token_ids") if name in fields}
    params = SamplingParams(**{"max_tokens": 8, "temperature": 0.0, "ignore_eos": True, **fields})
    return GenerateRequest(
        request_id=request_id, prompt_token_ids=list(prompt), sampling=params, **{"stream": True, **message}
    )


def _run_rank(
    config: SchedulerConfig,
    runner: RunnerConfig,
    model_folder: Path,
    status: Connection,
    grammar: GrammarConfig | None,
    draft: RunnerConfig | None,
    ranks: RankConfig,
    log: Path,
) -> None:
    logging.basicConfig(filename=log, level=logging.WARNING)
    run_scheduler(config, runner, grammar, (EOS,), model_folder / "tokenizer.json", status, draft, ranks)

"""What one agreement on grammars, one message to all ranks and one sum over them take, between processes on CPUs."""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from model_runner.config import RankConfig

_QUEUES = (1, 8, 64)
_MESSAGE_BYTES = 512
_ROWS, _HIDDEN = 8, 512


def measure(size: int, repeats: int) -> list[dict[str, Any]]:
    """Median milliseconds and bytes on rank 0 of ``size`` ranks; bytes are what a rank sends to each other."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        processes = [
            spawn.Process(
                target=_run_rank,
                args=(
                    RankConfig(
                        rank=rank,
                        size=size,
                        local_rank=rank,
                        host="127.0.0.1",
                        port=listener.getsockname()[1],
                        listener=listener if rank == 0 else None,
                    ),
                    repeats,
                    theirs,
                ),
                daemon=True,
            )
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        theirs.close()
        results: list[dict[str, Any]] = ours.recv()
        for process in processes:
            process.join()
    return results


def _run_rank(config: RankConfig, repeats: int, results: Connection) -> None:
    import torch

    from constrained.queue.ranks import Verdict, agree
    from model_runner.ranks import Ranks

    torch.set_num_threads(1)
    ranks = Ranks(config, torch.device("cpu"))
    measured: list[dict[str, Any]] = []

    def time_it(what: str, num_bytes: int, action: Callable[[], object]) -> None:
        times: list[float] = []
        for _ in range(repeats):
            ranks.all_gather(torch.zeros(1, dtype=torch.int8))  # all start together
            began = time.perf_counter()
            action()
            times.append(1000 * (time.perf_counter() - began))
        measured.append({"what": what, "bytes": num_bytes, "ms": round(statistics.median(times), 3)})

    for queue in _QUEUES:
        verdicts = [Verdict.READY] * queue
        time_it(f"grammar agreement, {queue} waiting", queue, lambda v=verdicts: agree(v, ranks.all_gather))  # type: ignore[misc]
    message = bytes(_MESSAGE_BYTES)
    time_it("message to all ranks", _MESSAGE_BYTES, lambda: ranks.broadcast_bytes(message))
    tensor = torch.ones(_ROWS, _HIDDEN)
    time_it(f"sum of {_ROWS} x {_HIDDEN} float32", 4 * tensor.numel(), lambda: ranks.sum_(tensor, is_exact=True))
    if config.rank == 0:
        results.send(measured)
    ranks.wait_for_all("done")
    ranks.close()

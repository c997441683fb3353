"""Milliseconds of a decode step of the model runner by number of ranks, and how many of them go to collectives.

``python -m bench.parallel_step --ranks 1,2 --rows 1,16``: the forward passes alone, without scheduler and sampling. A
machine needs a core for each rank, or the ranks wait for each other's turn.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.serve.arguments import count
from bench.step.__main__ import counts
from model_runner.config import RankConfig, RunnerConfig
from server.models.resolve import resolve

CONTEXT = 128
"""Tokens before each row's first decoded one."""
_COLLECTIVES = ("sum_", "gather_columns", "broadcast_")


@dataclass(frozen=True)
class StepTimes:
    """Medians over the measured steps, as rank 0 sees them."""

    num_ranks: int
    num_rows: int
    step_ms: float
    collectives_ms: float
    """Of those, in collectives: what they cost, and the wait for the slowest rank."""


def measure(config: RunnerConfig, *, num_ranks: int, row_counts: Sequence[int], steps: int) -> list[StepTimes]:
    """Decode with ``num_ranks`` processes; ``config`` says what model and how many threads each has."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        processes = []
        for rank in range(num_ranks):
            place = RankConfig(
                rank=rank,
                size=num_ranks,
                local_rank=rank,
                host="127.0.0.1",
                port=listener.getsockname()[1],
                listener=listener if rank == 0 else None,
            )
            arguments = (config, place, tuple(row_counts), steps, theirs)
            processes.append(context.Process(target=_run_rank, args=arguments, daemon=True))
            processes[-1].start()
    theirs.close()
    try:
        times: list[StepTimes] = ours.recv()
    finally:
        for process in processes:
            process.join(10)
            process.kill()
    return times


def _run_rank(
    config: RunnerConfig, place: RankConfig, row_counts: tuple[int, ...], steps: int, results: Connection
) -> None:
    import torch

    from model_runner.device import choose_device
    from model_runner.forward_row import ForwardRow
    from model_runner.ranks import Ranks
    from model_runner.runner import ModelRunner

    torch.set_num_threads(config.num_threads or 1)
    ranks = None if place.size == 1 else Ranks(place, choose_device(config.device, place.local_rank))
    pages_per_row = -(-(CONTEXT + steps + 1) // config.page_size)
    tokens = max(row_counts) * pages_per_row * config.page_size
    runner = ModelRunner(replace(config, kv_cache_tokens=tokens), ranks=ranks)
    spent = _time_collectives(ranks) if ranks is not None else [0.0]
    times = []
    for num_rows in row_counts:
        tables = [range(row * pages_per_row, (row + 1) * pages_per_row) for row in range(num_rows)]
        for table in tables:
            runner.forward([ForwardRow([1] * CONTEXT, 0, table, 0)])
        walls, waits = [], []
        for step in range(steps):
            spent[0] = 0.0
            began = time.perf_counter()
            logits = runner.forward([ForwardRow([1], CONTEXT + step, table, 1) for table in tables])
            token_ids = logits.argmax(-1) if place.rank == 0 else torch.empty(num_rows, dtype=torch.int64)
            token_ids = token_ids.to(runner.device)
            if ranks is not None:
                ranks.broadcast_(token_ids)
            token_ids.tolist()
            walls.append(time.perf_counter() - began)
            waits.append(spent[0])
        times.append(StepTimes(place.size, num_rows, 1000 * statistics.median(walls), 1000 * statistics.median(waits)))
    if place.rank == 0:
        results.send(times)
    if ranks is not None:
        ranks.wait_for_all("measuring")
        ranks.close()


def _time_collectives(ranks: object) -> list[float]:
    """Adds the seconds of every collective from now on to the one number of the list."""
    spent = [0.0]
    for name in _COLLECTIVES:
        function = getattr(ranks, name)

        def timed(*args: object, _function: object = function, **keywords: object) -> object:
            began = time.perf_counter()
            try:
                return _function(*args, **keywords)  # type: ignore[operator]
            finally:
                spent[0] += time.perf_counter() - began

        setattr(ranks, name, timed)
    return spent


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.parallel_step", description=__doc__)
    parser.add_argument("--model", help="as for scansion serve; none: the default model")
    parser.add_argument("--load-format", choices=["auto", "safetensors", "gguf", "dummy"], default="auto")
    parser.add_argument("--dtype", choices=["auto", "bfloat16", "float16", "float32"], default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--num-threads", type=count, default=1, help="of each rank")
    parser.add_argument("--ranks", type=counts, default=(1, 3), metavar="N,M")
    parser.add_argument("--rows", type=counts, default=(1, 16), metavar="N,M")
    parser.add_argument("--steps", type=count, default=30)
    options = parser.parse_args()
    config = RunnerConfig(
        model_path=Path(resolve(options.model, load_format=options.load_format).weights_path),
        load_format=options.load_format,
        dtype=options.dtype,
        device=options.device,
        num_threads=options.num_threads,
    )
    table = Table("ranks", "rows", "step ms", "of which collectives ms")
    for num_ranks in options.ranks:
        for each in measure(config, num_ranks=num_ranks, row_counts=options.rows, steps=options.steps):
            table.add_row(str(each.num_ranks), str(each.num_rows), f"{each.step_ms:.1f}", f"{each.collectives_ms:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()

"""When requests are sent: a closed loop of clients, or arrivals at random times."""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp
import psutil

from bench.serve.answer import read_answer
from bench.serve.client import Exchange, Sending, Target, exchange, open_session
from bench.serve.workloads import Job, Message, Workload


@dataclass(frozen=True, kw_only=True)
class ClosedLoop:
    """Each client sends its next job when its last one is answered."""

    num_clients: int


@dataclass(frozen=True, kw_only=True)
class PoissonArrivals:
    """Jobs start at random times, ``rate`` a second on average, however many are still running."""

    rate: float


Arrivals = ClosedLoop | PoissonArrivals


@dataclass(frozen=True, kw_only=True)
class Load:
    """Everything one measured stretch of a workload left behind."""

    exchanges: list[Exchange]
    seconds: float
    """From the first request's start to the last one's end."""
    generator_cores: float
    """CPU seconds of this process per second."""
    machine_busy: float
    """Share of the machine's CPU time that anything used."""
    machine_stolen: float
    """Share of the machine's CPU time that its host gave to others."""


async def run_load(
    target: Target, workload: Workload, arrivals: Arrivals, sending: Sending, *, seed: str, num_jobs: int
) -> Load:
    """Warm up, then put one workload on one server."""
    async with open_session(target, sending) as session:
        for job in workload.jobs(f"{seed}/warm-up", workload.num_warm_up):
            await _converse(session, target, sending, job, [])
        jobs = workload.jobs(seed, num_jobs)
        exchanges: list[Exchange] = []
        machine_before, own_before = psutil.cpu_times(), _own_cpu_seconds()
        match arrivals:
            case ClosedLoop(num_clients=num_clients):
                queue = iter(jobs)
                clients = (_client(session, target, sending, queue, exchanges) for _ in range(num_clients))
                await asyncio.gather(*clients)
            case PoissonArrivals(rate=rate):
                await _arrive(session, target, sending, jobs, arrival_times(rate, num_jobs, seed), exchanges)
        machine_after, own_after = psutil.cpu_times(), _own_cpu_seconds()
    seconds = max(item.ended for item in exchanges) - min(item.started for item in exchanges)
    spent = {name: getattr(machine_after, name) - getattr(machine_before, name) for name in machine_after._fields}
    total = sum(spent.values()) - spent.get("guest", 0) - spent.get("guest_nice", 0) or 1.0
    return Load(
        exchanges=exchanges,
        seconds=seconds,
        generator_cores=(own_after - own_before) / max(seconds, 1e-9),
        machine_busy=1 - (spent["idle"] + spent.get("iowait", 0)) / total,
        machine_stolen=spent.get("steal", 0) / total,
    )


def arrival_times(rate: float, count: int, seed: str) -> list[float]:
    """Seconds after the start at which a Poisson process of ``rate`` a second has its first ``count`` events.

    The first is at 0, so that a run has no empty beginning.
    """
    rng = random.Random(f"{seed}/arrivals")
    times = [0.0]
    while len(times) < count:
        times.append(times[-1] + rng.expovariate(rate))
    return times[:count]


async def _client(
    session: aiohttp.ClientSession, target: Target, sending: Sending, queue: Iterator[Job], exchanges: list[Exchange]
) -> None:
    for job in queue:
        await _converse(session, target, sending, job, exchanges)


async def _arrive(
    session: aiohttp.ClientSession,
    target: Target,
    sending: Sending,
    jobs: list[Job],
    times: list[float],
    exchanges: list[Exchange],
) -> None:
    start = time.perf_counter()
    running: list[asyncio.Task[None]] = []
    for job, due in zip(jobs, times, strict=True):
        await asyncio.sleep(max(0.0, start + due - time.perf_counter()))
        running.append(asyncio.create_task(_converse(session, target, sending, job, exchanges)))
    await asyncio.gather(*running)


async def _converse(
    session: aiohttp.ClientSession, target: Target, sending: Sending, job: Job, exchanges: list[Exchange]
) -> None:
    """All turns of a job; a failed turn ends it."""
    history: tuple[Message, ...] = job.messages
    for turn in range(1 + len(job.follow_ups)):
        body = sending.encode(target.model, job, job.body(history))
        done = await exchange(session, target, body, job, turn)
        exchanges.append(done)
        if turn == len(job.follow_ups):
            return
        # The one place where an answer is read during the run: the next turn is made of it.
        answer = read_answer(done)
        if answer.failure is not None:
            return
        history = (
            *history,
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": job.follow_ups[turn]},
        )


def _own_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime

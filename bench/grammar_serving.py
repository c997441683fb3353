"""What constraints cost a running server: ``python -m bench.grammar_serving`` (part of ``make bench-grammar``).

The first two questions are answered by runs in turn, either side first, so that a machine that changes its speed
favours neither; what counts is the median of the pairs' ratios.
Throughput: 16 clients with three schemas, and the same prompts without a schema whose answers are made to have the same
lengths.
Waiting: the gaps between the tokens of one stream, with and without a compile pending that does not end.
Ready: the time until a request with a schema that the server has not seen is admitted, that is until its status line,
while 12 clients stream; beside it the same for a known schema.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shlex
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
from rich.console import Console

from bench.serve.answer import Answer, read_answer
from bench.serve.benchmark import first_model
from bench.serve.client import Exchange, Sending, Target, exchange, open_session
from bench.serve.own_server import own_server
from bench.serve.workloads import Job, make_workload

_SENDING = Sending()


@dataclass(frozen=True)
class Pass:
    """One closed loop over a list of jobs."""

    answers: list[Answer]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return sum(answer.output_tokens for answer in self.answers) / self.seconds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.grammar_serving", description=__doc__)
    parser.add_argument("--base-url", help="a running server, ending in /v1; a server of its own if left out")
    parser.add_argument("--serve-args", default="", metavar="ARGS", help="options of the server that is started")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs for each question")
    parser.add_argument("--requests", type=int, default=48, help="requests of a throughput run")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--stream-tokens", type=int, default=400, help="tokens of a stream whose gaps are measured")
    parser.add_argument("--only", choices=("throughput", "waiting", "ready"), help="one question alone")
    parser.add_argument("--busy-clients", type=int, default=12, help="clients that stream while schemas are sent")
    parser.add_argument("--schemas", type=int, default=60, help="new schemas that are timed, and as many known ones")
    options = parser.parse_args(arguments)
    console = Console(highlight=False)
    with contextlib.ExitStack() as stack:
        url = options.base_url
        if url is None:
            url = stack.enter_context(own_server(shlex.split(options.serve_args), start_seconds=600)).base_url
        target = Target(label="server", base_url=url, model=asyncio.run(first_model(url, None)))
        is_good = True
        if options.only in (None, "throughput"):
            is_good = asyncio.run(measure_throughput(target, options, console))
        if options.only in (None, "waiting"):
            asyncio.run(measure_waiting(target, options, console))
        if options.only in (None, "ready"):
            asyncio.run(measure_ready(target, options, console))
    return 0 if is_good else 1


async def measure_throughput(target: Target, options: argparse.Namespace, console: Console) -> bool:
    """Print the rates; returns whether every finished constrained answer was valid."""
    seed = str(time.time_ns())
    constrained, plain = make_workload("structured", seed), make_workload("structured-plain", seed)
    rates: dict[str, list[float]] = {"constrained": [], "plain": []}
    finished = invalid = failed = 0
    async with open_session(target, _SENDING) as session:
        warm = await _run(session, target, constrained.jobs(f"{seed}/warm", options.requests), options.clients)
        lengths = [answer.output_tokens for answer in warm.answers]
        for number in range(options.rounds):
            jobs, twins = (one.jobs(f"{seed}/{number}", options.requests) for one in (constrained, plain))
            # Each side goes first in turn, since a machine that changes its speed would favour one of them. The plain
            # answers are as long as the constrained ones, or, where those come second, as those of the round before.
            if number % 2:
                second = await _run(session, target, _as_long(twins, lengths), options.clients)
            first = await _run(session, target, jobs, options.clients)
            lengths = [answer.output_tokens for answer in first.answers]
            if not number % 2:
                second = await _run(session, target, _as_long(twins, lengths), options.clients)
            rates["constrained"].append(first.tokens_per_second)
            rates["plain"].append(second.tokens_per_second)
            ended = [answer for answer in first.answers if answer.finish_reason == "stop"]
            finished += len(ended)
            invalid += sum(not answer.is_valid for answer in ended)
            failed += sum(answer.failure is not None for answer in [*first.answers, *second.answers])
            console.print(
                f"round {number + 1}: constrained {rates['constrained'][-1]:.1f} tok/s, "
                f"plain {rates['plain'][-1]:.1f} tok/s"
            )
    ratios = [a / b for a, b in zip(rates["constrained"], rates["plain"], strict=True)]
    console.print(
        f"throughput, median of {options.rounds} pairs: {statistics.median(rates['constrained']):.1f} constrained, "
        f"{statistics.median(rates['plain']):.1f} plain, ratio {statistics.median(ratios):.3f} "
        f"(each: {', '.join(f'{ratio:.3f}' for ratio in ratios)})"
    )
    console.print(f"finished answers: {finished}, invalid: {invalid}; failed requests: {failed}")
    return not invalid and not failed


async def measure_waiting(target: Target, options: argparse.Namespace, console: Console) -> None:
    """Print the p99 of a stream's gaps without and with an endless compile."""
    p99: dict[bool, list[float]] = {False: [], True: []}
    p50: dict[bool, list[float]] = {False: [], True: []}
    async with open_session(target, _SENDING) as session:
        await _stream(session, target, 32)
        for number in range(2 * options.rounds):
            is_pending = number % 4 in (1, 2)  # plain, pending, pending, plain
            pending = asyncio.create_task(_endless(session, target)) if is_pending else None
            await asyncio.sleep(1.0)
            gaps = sorted((await _stream(session, target, options.stream_tokens)).gaps)
            if pending is not None:
                pending.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await pending
            p99[is_pending].append(gaps[len(gaps) * 99 // 100] * 1e3)
            p50[is_pending].append(statistics.median(gaps) * 1e3)
            await asyncio.sleep(0.5)
    for name, figures in (("p50", p50), ("p99", p99)):
        ratio = statistics.median(b / a for a, b in zip(figures[False], figures[True], strict=True))
        console.print(
            f"gaps of a stream, {name}: {statistics.median(figures[False]):.2f} ms alone, "
            f"{statistics.median(figures[True]):.2f} ms beside an endless compile; "
            f"median of {options.rounds} ratios {ratio:.3f} ({100 * (ratio - 1):+.1f} %)"
        )
    for is_pending, name in ((False, "alone"), (True, "beside")):
        console.print(f"p99 {name}: {', '.join(f'{value:.2f}' for value in p99[is_pending])}")


async def measure_ready(target: Target, options: argparse.Namespace, console: Console) -> None:
    """Print how long requests with new and with known schemas wait for their status line on a busy server."""
    seconds: dict[bool, list[float]] = {False: [], True: []}

    async def keep_busy(session: aiohttp.ClientSession) -> None:
        while True:
            await _stream(session, target, options.stream_tokens)

    async with open_session(target, _SENDING) as session:
        clients = [asyncio.create_task(keep_busy(session)) for _ in range(options.busy_clients)]
        await asyncio.sleep(3.0)
        for number in range(2 * options.schemas):
            is_new = number % 2 == 0
            name = f"k{time.time_ns()}" if is_new else "known"
            seconds[is_new].append(await _until_admitted(session, target, name))
            if clients[0].done():
                break
        for client in clients:
            client.cancel()
        for ended in await asyncio.gather(*clients, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
    for is_new, kind in ((True, "new"), (False, "known")):
        ordered = sorted(seconds[is_new])
        p50, p99 = statistics.median(ordered), ordered[len(ordered) * 99 // 100]
        console.print(
            f"{kind} schema beside {options.busy_clients} streams, until admitted: p50 {p50 * 1e3:.0f} ms, "
            f"p99 {p99 * 1e3:.0f} ms, longest {ordered[-1] * 1e3:.0f} ms, {len(ordered)} requests"
        )


async def _until_admitted(session: aiohttp.ClientSession, target: Target, name: str) -> float:
    """Seconds until the status line of a streamed answer to a schema of two properties."""
    properties = {name: {"type": "string", "maxLength": 20}, "count": {"type": "integer"}}
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 1,
        "stream": True,
        "json_schema": {"type": "object", "properties": properties, "required": [name, "count"]},
    }
    started = time.perf_counter()
    async with session.post(f"{target.base_url}/chat/completions", json=body) as response:
        seconds = time.perf_counter() - started
        if response.status != 200:
            raise RuntimeError(f"a schema was refused: {await response.text()}")
        await response.read()
    return seconds


def _as_long(jobs: Sequence[Job], lengths: Sequence[int]) -> list[Job]:
    return [replace(job, max_tokens=max(1, n), fixed_length=True) for job, n in zip(jobs, lengths, strict=True)]


async def _run(session: aiohttp.ClientSession, target: Target, jobs: Sequence[Job], num_clients: int) -> Pass:
    results: dict[int, Exchange] = {}
    queue = iter(enumerate(jobs))

    async def client() -> None:
        for index, job in queue:
            body = _SENDING.encode(target.model, job, job.body(job.messages))
            results[index] = await exchange(session, target, body, job, 0)

    await asyncio.gather(*(client() for _ in range(num_clients)))
    seconds = max(one.ended for one in results.values()) - min(one.started for one in results.values())
    return Pass([read_answer(results[index]) for index in range(len(jobs))], seconds)


async def _stream(session: aiohttp.ClientSession, target: Target, num_tokens: int) -> Answer:
    rng = random.Random(time.time_ns())
    job = Job(
        messages=({"role": "user", "content": f"Tell a long story about number {rng.randrange(10**9)}."},),
        max_tokens=num_tokens,
        fixed_length=True,
    )
    body = _SENDING.encode(target.model, job, {**job.body(job.messages), "return_token_ids": True})
    answer = read_answer(await exchange(session, target, body, job, 0))
    if answer.failure is not None:
        raise RuntimeError(f"the stream failed: {answer.failure}")
    return answer


async def _endless(session: aiohttp.ClientSession, target: Target) -> None:
    """Keep a compile pending that no engine ends within the server's deadline: strings of many different lengths."""
    while True:
        unique = time.time_ns()
        # xgrammar has a rule for each character that a string may still have, and these share none.
        texts = {f"k{i}": {"type": "string", "pattern": f"^.{{0,127}} {unique} {i}$"} for i in range(60)}
        schema = {"type": "object", "properties": texts}
        body: dict[str, Any] = {
            "model": target.model,
            "messages": [{"role": "user", "content": "x"}],
            "max_tokens": 1,
            "json_schema": schema,
            "grammar_backend": "xgrammar",
            "stream": True,
        }
        job = Job(messages=(), max_tokens=1)
        ended = await exchange(session, target, json.dumps(body).encode(), job, 0)
        if ended.failure is None:
            raise RuntimeError("the grammar of the endless compile was ready")


if __name__ == "__main__":
    raise SystemExit(main())

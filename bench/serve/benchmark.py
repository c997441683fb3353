"""A whole benchmark: every workload, repeated, on one server or on two in turn."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp

from bench.serve.answer import read_answer
from bench.serve.client import Sending, Target, open_session
from bench.serve.load import Arrivals, ClosedLoop, PoissonArrivals, run_load
from bench.serve.metrics import (
    Objectives,
    count_sources,
    failures,
    figures,
    finish_reasons,
    first_failures,
)
from bench.serve.results import Results, Run, describe
from bench.serve.workloads import make_workload


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run."""

    workloads: tuple[str, ...]
    repeats: int
    seed: int
    sending: Sending
    objectives: Objectives
    num_clients: int | None = None
    rate: float | None = None
    num_jobs: int | None = None
    input_words: int = 80
    output_tokens: int = 128


async def run_benchmark(
    targets: Sequence[Target], plan: Plan, progress: Callable[[str], None] = lambda line: None
) -> Results:
    """Run a plan.

    With two targets each workload runs on both, one right after the other and first on the one that came second the
    last time, so that a machine that slows down does not favour either.
    """
    results = Results(
        models={target.label: target.model for target in targets}, objectives=plan.objectives, seed=plan.seed
    )
    for repeat in range(plan.repeats):
        for name in plan.workloads:
            for target in targets if repeat % 2 == 0 else tuple(reversed(targets)):
                progress(f"repeat {repeat + 1}/{plan.repeats}: {name} on {target.label}")
                results.runs.append(await _run_once(target, plan, name, repeat))
    return results


async def _run_once(target: Target, plan: Plan, name: str, repeat: int) -> Run:
    # A repeat has a seed of its own: the server's caches have not seen its prompts and schemas.
    seed = f"{plan.seed}/{repeat}"
    workload = make_workload(name, seed, input_words=plan.input_words, output_tokens=plan.output_tokens)
    num_jobs = plan.num_jobs or workload.num_jobs
    arrivals: Arrivals
    if plan.rate is not None:
        arrivals = PoissonArrivals(rate=plan.rate)
    else:
        # A single stream stays one.
        asked = plan.num_clients if workload.num_clients > 1 else None
        arrivals = ClosedLoop(num_clients=asked or workload.num_clients)
    # A collection in the middle of a run would show up as latency.
    gc.collect()
    gc.disable()
    try:
        load = await run_load(target, workload, arrivals, plan.sending, seed=seed, num_jobs=num_jobs)
    finally:
        gc.enable()
    answers = [read_answer(exchange) for exchange in load.exchanges]
    return Run(
        workload=name,
        label=target.label,
        repeat=repeat,
        seed=seed,
        arrivals=describe(arrivals),
        figures=figures(answers, load.seconds, plan.objectives),
        failures=failures(answers),
        first_failures=first_failures(answers),
        finish_reasons=finish_reasons(answers),
        counted_by=count_sources(answers),
        generator_cores=load.generator_cores,
        machine_busy=load.machine_busy,
        machine_stolen=load.machine_stolen,
    )


class ModelListError(RuntimeError):
    """A server did not name its models."""


async def first_model(base_url: str, api_key: str | None) -> str:
    """The id of the first model that ``/v1/models`` lists.

    Raises
    ------
    ModelListError
        When the server cannot be reached or lists none.
    """
    target = Target(label="", base_url=base_url, model="", api_key=api_key)
    try:
        async with (
            open_session(target, Sending(timeout_seconds=30)) as session,
            session.get(f"{base_url}/models", allow_redirects=False) as response,
        ):
            response.raise_for_status()
            listed = await response.json(content_type=None)
            return str(listed["data"][0]["id"])
    except (aiohttp.ClientError, OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ModelListError(
            f"{base_url}/models names no model ({type(error).__name__}: {error}); is it running? --model names one"
        ) from error

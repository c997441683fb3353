"""From the options of ``scansion bench serve`` to results."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shlex
import time
from pathlib import Path

from rich.console import Console

from bench.serve.benchmark import ModelListError, Plan, first_model, run_benchmark
from bench.serve.client import Sending, Target
from bench.serve.metrics import Objectives
from bench.serve.own_server import OwnServer, ServerStartError, own_server
from bench.serve.report import markdown, print_table
from bench.serve.results import Results
from bench.serve.workloads import SUITES


def run(options: argparse.Namespace, notes: Console) -> int:
    """Measure and report; 0 when every request succeeded, 1 otherwise."""
    try:
        results = _measure(options, notes)
    except (ServerStartError, ModelListError) as error:
        notes.print(str(error), markup=False)
        return 1
    _write(results, options)
    return 1 if results.num_failed else 0


def _measure(options: argparse.Namespace, notes: Console) -> Results:
    plan = _plan(options)
    notes.print(f"seed {plan.seed}")
    with contextlib.ExitStack() as stack:
        server: OwnServer | None = None
        url = options.base_url
        if url is None:
            notes.print("starting a server ...")
            server = stack.enter_context(
                own_server(shlex.split(options.serve_args), start_seconds=options.start_timeout)
            )
            notes.print(f"ready after {server.ready_seconds:.1f} s")
            url = server.base_url
        resident_mib = server.resident_mib() if server is not None else 0.0
        targets = [_target(options.label, url, options.model, options.api_key)]
        if options.against_url is not None:
            targets.append(
                _target(options.against_label, options.against_url, options.against_model, options.against_api_key)
            )
        results = asyncio.run(run_benchmark(targets, plan, notes.print))
        if server is not None:
            results.server = {
                "ready_seconds": server.ready_seconds,
                "resident_mib_ready": resident_mib,
                "resident_mib_end": server.resident_mib(),
            }
    return results


def _target(label: str, url: str, model: str | None, api_key: str | None) -> Target:
    name = model if model is not None else asyncio.run(first_model(url, api_key))
    return Target(label=label, base_url=url, model=name, api_key=api_key)


def _plan(options: argparse.Namespace) -> Plan:
    extra_body = {"return_token_ids": True, **options.extra_body} if options.token_ids else options.extra_body
    return Plan(
        workloads=options.workloads or SUITES[options.suite],
        repeats=options.repeats,
        seed=options.seed if options.seed is not None else int(time.time()),
        sending=Sending(
            timeout_seconds=options.timeout,
            stall_seconds=options.stall_timeout,
            ignore_eos=options.ignore_eos,
            extra_body=extra_body,
            drop_fields=frozenset(name for name in options.drop_fields.split(",") if name),
        ),
        objectives=Objectives(ttft_ms=options.ttft_slo, itl_ms=options.itl_slo),
        num_clients=options.clients,
        rate=options.rate,
        num_jobs=options.requests,
        input_words=options.input_words,
        output_tokens=options.output_tokens,
    )


def _write(results: Results, options: argparse.Namespace) -> None:
    if options.json is not None:
        Path(options.json).write_text(json.dumps(results.to_json(), indent=2) + "\n", "utf-8")
    if options.markdown == "-":
        print(markdown(results), end="")
        return
    if options.markdown is not None:
        Path(options.markdown).write_text(markdown(results), "utf-8")
    print_table(results, Console())

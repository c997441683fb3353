"""Steps and tokens a second with drafts and without."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.drafters import workloads
from bench.drafters.compare import compare
from bench.drafters.engine import Run
from bench.drafters.report import Report
from bench.drafters.setup import JUMP_FORWARD, NGRAM, OFF, Bench
from constrained.config import JsonWhitespace
from scheduler.drafters.combination import CombinedDrafter
from scheduler.messages import GenerateRequest

SCHEMAS: Mapping[str, dict[str, Any]] = {
    "shipment": workloads.FORCED,
    "flight": workloads.FLIGHT,
    "weather": workloads.WEATHER,
    "article": workloads.FREE,
}
_NOISE = 0.02
"""What counts as no difference between two times."""
_FORCED_SHARE, _LEAST_GAIN = 0.35, 1.3
_LEAST_STEPS, _LEAST_OF_IDEAL = 0.8, 0.9


def steps(bench: Bench, options: argparse.Namespace, report: Report) -> None:
    """One client: steps and tokens a second against the share of forced tokens in the answers with drafts.

    Outside of float32 those without may be other texts.
    """
    for name, schema in _chosen(options).items():
        for whitespace in _whitespaces():
            requests = workloads.structured(schema, options.structured, bench.encode)
            plain, drafted = (bench.engine(config, whitespace=whitespace) for config in (OFF, JUMP_FORWARD))
            both = compare(plain, drafted, requests, together=False, repeat=options.repeat)
            share = forced_share(bench, requests, both.drafted, whitespace)
            what = f"1 client, {name}, {whitespace}"
            of_share = both.steps_saved / share
            report.claim(
                f"{what}: forced share {share:.2f}, steps saved {both.steps_saved:.2f}: {of_share:.2f} of it "
                f"(at least {_LEAST_STEPS})",
                of_share >= _LEAST_STEPS,
            )
            ideal = 1 / (1 - share)
            least = _LEAST_GAIN if share >= _FORCED_SHARE else _LEAST_OF_IDEAL * ideal
            report.claim(
                f"{what}: {both} (at least {least:.2f}; {both.gain / ideal:.2f} of 1 / (1 - share))",
                both.gain >= least,
            )


def clients(bench: Bench, options: argparse.Namespace, report: Report) -> None:
    """16 clients at once.

    Three requests each, since outside of float32 answers differ in length, and the longest runs on alone at the end.
    """
    for name, schema in _chosen(options).items():
        for whitespace in _whitespaces():
            requests = workloads.structured(schema, 48, bench.encode)
            plain, drafted = (bench.engine(config, whitespace=whitespace) for config in (OFF, JUMP_FORWARD))
            both = compare(plain, drafted, requests, together=True, repeat=options.repeat)
            report.claim(f"16 clients, {name}, {whitespace}: {both} (never slower)", both.gain >= 1 - _NOISE)


def ngram(bench: Bench, options: argparse.Namespace, report: Report) -> None:
    """What n-gram drafts cost where nothing repeats, and bring where much does."""
    requests = workloads.unrepeated(4, bench.encode, max_tokens=options.tokens * 2)
    both = compare(bench.engine(OFF), bench.engine(NGRAM), requests, together=False, repeat=options.repeat)
    report.claim(f"n-gram, text that never repeats: {both} (never slower)", both.gain >= 1 - _NOISE)
    cost, mean = _propose_share(bench, requests)
    report.claim(
        f"n-gram, text that never repeats: {cost * 1e6:.0f} us of {mean * 1e3:.1f} ms a step", cost < _NOISE * mean
    )
    requests = workloads.copying(3, bench.encode, max_tokens=options.tokens * 2)
    both = compare(bench.engine(OFF), bench.engine(NGRAM), requests, together=False, repeat=options.repeat)
    report.claim(f"n-gram, copying: {both}", both.gain > 1)


def forced_share(bench: Bench, requests: Sequence[GenerateRequest], run: Run, whitespace: JsonWhitespace) -> float:
    """Share of the answers' tokens that lie wholly in forced text."""
    grammars = bench.engine(OFF, whitespace=whitespace).grammars
    forced = total = 0
    for request in requests:
        assert request.grammar is not None
        grammar = grammars.fresh(request.grammar)
        for token in run.answers[request.request_id, 0].token_ids:
            data = grammar.environment.matchable_bytes[token]
            forced += bool(data) and grammar.forced_bytes().startswith(data)
            total += 1
            grammar.accept_token(token)
    return forced / total


def _chosen(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    return {name: schema for name, schema in SCHEMAS.items() if name in (options.schema or SCHEMAS)}


def _whitespaces() -> tuple[JsonWhitespace, ...]:
    return "compact", "bounded"


def _propose_share(bench: Bench, requests: Sequence[GenerateRequest]) -> tuple[float, float]:
    """Mean time of one call of the drafter, and of one step."""
    engine = bench.engine(NGRAM)
    timed = _Timed(engine.drafter)
    engine.drafter.propose = timed  # type: ignore[method-assign, assignment]
    run = engine.run(requests, together=False)
    return timed.seconds / max(1, timed.calls), run.seconds / run.steps


class _Timed:
    def __init__(self, drafter: CombinedDrafter) -> None:
        self._propose: Callable[..., tuple[int, ...]] = drafter.propose
        self.seconds = 0.0
        self.calls = 0

    def __call__(self, *arguments: Any) -> tuple[int, ...]:
        started = time.perf_counter()
        drafts = self._propose(*arguments)
        self.seconds += time.perf_counter() - started
        self.calls += 1
        return drafts

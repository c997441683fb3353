"""Answers with drafts against answers of plain decoding: alone, in batches of 16, and under preemption."""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence

import msgspec

from bench.drafters import workloads
from bench.drafters.engine import Run
from bench.drafters.report import Report
from bench.drafters.setup import JUMP_FORWARD, NGRAM, OFF, Bench, Config
from scheduler.messages import GenerateRequest

CONFIGS: Mapping[str, Config] = {
    "jump-forward": JUMP_FORWARD,
    "n-gram": NGRAM,
    "jump-forward and draft model": {"jump_forward": True, "speculative": "draft-model"},
}
_FEW_PAGES = 32
"""Of 16 tokens: less than 16 answers need, so that some are preempted for the others."""
_PREEMPTION = 0.3
"""Share of the steps behind which some request is preempted without any need."""


def lossless(bench: Bench, options: argparse.Namespace, report: Report) -> None:
    """Every request once alone without drafts: the reference. Once more alone, under one of the configurations in
    turn; then all requests together under each of them, with pages enough, and with few and random preemptions."""
    requests = workloads.varied(options.requests, bench.encode, max_tokens=options.tokens)
    plain = bench.engine(OFF).run(_without_drafts(requests), together=False)
    report.say(f"lossless: reference: {len(plain.answers)} answers, {plain.num_tokens} tokens")
    names = list(CONFIGS)
    for position, name in enumerate(names):
        # The kinds of requests come in turn too, so the configurations are shifted with every round of them.
        part = [
            request
            for index, request in enumerate(requests)
            if (index + index // workloads.NUM_KINDS) % len(names) == position
        ]
        engine = bench.engine(CONFIGS[name], drafts_everywhere=True)
        _compare(report, bench, f"{name}, alone", part, plain, engine.run(part, together=False))
    for name, config in {"no drafts": OFF, **CONFIGS}.items():
        asked = requests if config is not OFF else _without_drafts(requests)
        run = bench.engine(config, drafts_everywhere=True).run(asked, together=True)
        _compare(report, bench, f"{name}, 16 at once", asked, plain, run)
        engine = bench.engine(config, pages=_FEW_PAGES, drafts_everywhere=True)
        run = engine.run(asked, together=True, preempt=random.Random(0), preempt_share=_PREEMPTION)
        preemptions = engine.scheduler.planner.counters.preemptions
        _compare(report, bench, f"{name}, {preemptions} preemptions", asked, plain, run)


def _compare(report: Report, bench: Bench, name: str, asked: Sequence[GenerateRequest], plain: Run, run: Run) -> None:
    ids = {request.request_id for request in asked}
    expected = {key: answer for key, answer in plain.answers.items() if key[0] in ids}
    different = [key for key, answer in expected.items() if run.answers.get(key) != answer]
    errors = {key: text for key, text in run.errors.items() if plain.errors.get(key) != text}
    text = (
        f"lossless: {name}: {len(different)} of {len(expected)} answers differ ({len(different) / len(expected):.1%}); "
        f"{run.num_tokens} tokens, {run.accepted_tokens} of them drafted in {run.steps} steps"
    )
    if different:
        text += f"; first: {different[0]}"
    if errors:
        text += f"; errors: {errors}"
    if bench.is_exact:
        report.claim(text, not different and not errors)
    else:
        report.say(text)


def _without_drafts(requests: Sequence[GenerateRequest]) -> list[GenerateRequest]:
    return [msgspec.structs.replace(request, may_draft=False) for request in requests]

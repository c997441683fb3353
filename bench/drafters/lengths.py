"""How long drafts should be: the shortest forced run that is worth one, and the longest draft."""

from __future__ import annotations

import argparse

from bench.drafters import workloads
from bench.drafters.compare import compare
from bench.drafters.report import Report
from bench.drafters.setup import JUMP_FORWARD, OFF, Bench
from bench.drafters.speed import SCHEMAS

_SHORTEST = (1, 2, 3)
_LONGEST = (4, 8, 16, 32)


def lengths(bench: Bench, options: argparse.Namespace, report: Report) -> None:
    """Tokens a second over plain decoding by each limit, at one client and at 16."""
    for together in (False, True):
        clients = 16 if together else 1
        for name in ("shipment", "flight"):
            requests = workloads.structured(SCHEMAS[name], 16 if together else options.structured, bench.encode)
            for shortest in _SHORTEST:
                drafted = bench.engine(JUMP_FORWARD, min_forced_tokens=shortest)
                both = compare(bench.engine(OFF), drafted, requests, together=together, repeat=options.repeat)
                report.say(f"shortest run {shortest}, {clients} clients, {name}: {both}")
            for longest in _LONGEST:
                drafted = bench.engine({**JUMP_FORWARD, "max_draft_tokens": longest})
                both = compare(bench.engine(OFF), drafted, requests, together=together, repeat=options.repeat)
                report.say(f"longest draft {longest}, {clients} clients, {name}: {both}")

"""``make bench-drafters``: also ``python -m bench.drafters``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence

from bench.drafters.lengths import lengths
from bench.drafters.lossless import lossless
from bench.drafters.report import Report
from bench.drafters.setup import Bench
from bench.drafters.speed import SCHEMAS, clients, ngram, steps

Part = Callable[[Bench, argparse.Namespace, Report], None]
SPEED_PARTS: Mapping[str, Part] = {"steps": steps, "clients": clients, "ngram": ngram, "lengths": lengths}
PARTS = ("lossless", *SPEED_PARTS)


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 1 when a claim failed."""
    options = _parser().parse_args(argv)
    report = Report()
    wanted = options.only or PARTS
    if "lossless" in wanted:
        bench = Bench(options, dtype="float32")
        report.say(str(bench))
        lossless(bench, options, report)
    speed_parts = [part for name, part in SPEED_PARTS.items() if name in wanted]
    if speed_parts:
        bench = Bench(options, dtype="auto")
        report.say(str(bench))
        for part in speed_parts:
            part(bench, options, report)
    report.say(f"{report.num_failed} claims failed")
    return 1 if report.num_failed else 0


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m bench.drafters", description=__doc__)
    result.add_argument("--model", help="as for scansion serve; none: the default model")
    result.add_argument("--draft-model", help="in the comparison of answers; none: the model itself")
    result.add_argument(
        "--dtype",
        choices=["auto", "bfloat16", "float16", "float32"],
        help="none: answers are compared in float32, where they must be the same, and the rest is timed as the server "
        "would compute",
    )
    result.add_argument("--device", default="auto")
    result.add_argument("--num-threads", type=int)
    result.add_argument("--only", action="append", choices=PARTS, help="a part; several may be given")
    result.add_argument(
        "--schema", action="append", choices=SCHEMAS, help="of the structured ones; several may be given"
    )
    result.add_argument("--requests", type=int, default=200, help="varied requests whose answers are compared")
    result.add_argument("--tokens", type=int, default=64, help="longest answer of those")
    result.add_argument("--structured", type=int, default=8, help="structured requests that are timed")
    result.add_argument("--repeat", type=int, default=3, help="timed runs each way, of which the median counts")
    return result


if __name__ == "__main__":
    sys.exit(main())

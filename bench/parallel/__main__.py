"""What many ranks and copies cost and bring, on CPUs: ``python -m bench.parallel`` (``make bench-parallel``).

Three parts: what collectives take, an agreement on grammars among them; the time of a step on two ranks against one;
and the share of multi-turn prompts found in the caches of two copies, by our placement and by taking turns. Times need
a quiet machine with a core for each rank; shares need neither.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.parallel import collectives, overhead, placement
from bench.parallel.random_model import write_random_model

_PARTS = ("collectives", "overhead", "placement")


def main() -> int:
    """Print one JSON line for each figure; 1 when placement in tight caches is not twice as good as taking turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(_PARTS)}; none: all of them")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16], help="running requests (overhead)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement (overhead)")
    parser.add_argument("--hidden-size", type=int, default=512, help="of the random model (overhead)")
    parser.add_argument("--layers", type=int, default=16, help="of the random model (overhead)")
    parser.add_argument("--repeats", type=int, default=1000, help="of each collective (collectives)")
    parser.add_argument("--conversations", type=int, default=24, help="at the same time (placement)")
    parser.add_argument("--turns", type=int, default=4, help="of each conversation (placement)")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(_PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; choose from {', '.join(_PARTS)}")
    parts: dict[str, Callable[[argparse.Namespace, Path], int]] = {
        "collectives": _collectives,
        "overhead": _overhead,
        "placement": _placement,
    }
    with tempfile.TemporaryDirectory() as folder:
        return max(parts[part](options, Path(folder)) for part in options.parts or _PARTS)


def _collectives(options: argparse.Namespace, _: Path) -> int:
    for figures in collectives.measure(2, options.repeats):
        _print("collectives", figures)
    return 0


def _overhead(options: argparse.Namespace, folder: Path) -> int:
    model = write_random_model(
        folder / "wide", hidden_size=options.hidden_size, num_layers=options.layers, num_heads=8, num_kv_heads=4
    )
    for rows in options.rows:
        _print("overhead", overhead.compare(model, rows=rows, seconds=options.seconds))
    return 0


def _placement(options: argparse.Namespace, folder: Path) -> int:
    model = write_random_model(folder / "small")
    workload = placement.Workload(options.conversations, options.turns)
    # First copies that can each hold a bit more than half of the conversations, then copies that can hold all.
    tight = placement.compare(model, workload, kv_share=0.52)
    _print("placement", tight)
    _print("placement", placement.compare(model, workload, kv_share=1.2))
    return int(tight["hit_share"] < 2 * tight["hit_share_in_turns"])


def _print(part: str, figures: dict[str, Any]) -> None:
    print(json.dumps({"part": part, **figures}), flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""Two engines on the same requests, in alternation: what one takes of the other's time and steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.drafters.engine import Engine, Run
from scheduler.messages import GenerateRequest


@dataclass(frozen=True)
class Comparison:
    """Of drafts with plain decoding. Outside of float32 answers may differ in length, so all is counted by token."""

    plain: Run
    drafted: Run
    gains: tuple[float, ...]
    """Tokens a second with drafts over those without, of each repeat."""

    @property
    def gain(self) -> float:
        return statistics.median(self.gains)

    @property
    def steps_saved(self) -> float:
        """Share of the steps that drafts spare."""
        return 1 - (self.drafted.steps / self.drafted.num_tokens) / (self.plain.steps / self.plain.num_tokens)

    def __str__(self) -> str:
        spread = f"{min(self.gains):.2f} to {max(self.gains):.2f}"
        return (
            f"tokens/s x {self.gain:.2f} ({spread}), steps {self.plain.steps} -> {self.drafted.steps} "
            f"for {self.plain.num_tokens} -> {self.drafted.num_tokens} tokens"
        )


def compare(
    plain: Engine, drafted: Engine, requests: Sequence[GenerateRequest], *, together: bool, repeat: int
) -> Comparison:
    """Run both ``repeat`` times and once before, which is not counted: it compiles, and shows the forms to the drafter.

    One client's requests alternate one by one, so that a change of the machine's load meets both.
    """
    parts = [list(requests)] if together else [[request] for request in requests]
    totals: list[tuple[Run, Run]] = []
    for turn in range(repeat + 1):
        runs: tuple[list[Run], list[Run]] = ([], [])
        for index, part in enumerate(parts):
            pairs = [(plain, runs[0]), (drafted, runs[1])]
            for engine, results in pairs if (turn + index) % 2 else reversed(pairs):
                results.append(engine.run(part, together=together))
        totals.append((Run.total(runs[0]), Run.total(runs[1])))
    counted = totals[1:]
    gains = tuple((fast.num_tokens / fast.seconds) / (slow.num_tokens / slow.seconds) for slow, fast in counted)
    return Comparison(counted[-1][0], counted[-1][1], gains)

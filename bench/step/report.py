"""Step profiles as a table, as Markdown and as plain data."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.step.profile import StepProfile

PARTS = (
    "receive",
    "plan",
    "launch",
    "mask",
    "batch",
    "attention",
    "matmul",
    "forward",
    "sample",
    "collect",
    "apply",
    "send",
)
"""In the order of a step."""


def print_table(profiles: Sequence[StepProfile], caption: str, console: Console) -> None:
    """One column for each kind of step: a terminal has more lines than columns."""
    header, rows = table_rows(profiles)
    table = Table(caption=caption, caption_justify="left")
    table.add_column("\n\n" + "part")
    for kind, num_rows, context, *_ in rows:
        title = [kind, f"{num_rows} row{'' if num_rows == '1' else 's'}", f"at {context}"]
        table.add_column("\n".join(title), justify="right")
    for index in range(header.index("tokens"), len(header)):
        table.add_row(header[index], *(row[index] for row in rows), end_section=header[index] == "tok/s")
    console.print(table)


def markdown(profiles: Sequence[StepProfile], caption: str) -> str:
    """The same table as Markdown, its caption above."""
    header, rows = table_rows(profiles)
    lines = [header, ["---"] * len(header), *rows]
    return caption + "\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def table_rows(profiles: Sequence[StepProfile]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: medians in milliseconds."""
    parts = parts_of(profiles)
    header = ["step", "rows", "context", "tokens", "ms", "min–max", "tok/s", *parts]
    rows = []
    for profile in profiles:
        rows.append(
            [
                profile.kind,
                str(profile.rows),
                str(profile.context_length),
                str(profile.tokens),
                f"{profile.median_ms:.2f}",
                f"{min(profile.total_ms):.2f}–{max(profile.total_ms):.2f}",
                f"{profile.tokens / profile.median_ms * 1000:.0f}",
                *(f"{profile.median_part_ms(part):.2f}" for part in parts),
            ]
        )
    return header, rows


def parts_of(profiles: Sequence[StepProfile]) -> list[str]:
    """The parts that took any time, in the order of a step, unknown ones last."""
    seen = {part for profile in profiles for parts in profile.parts_ms for part in parts}
    return [part for part in PARTS if part in seen] + sorted(seen - set(PARTS))


def to_json(profiles: Sequence[StepProfile], about: dict[str, Any]) -> dict[str, Any]:
    """Every measured step, for a file."""
    return {
        **about,
        "profiles": [
            {
                "kind": profile.kind,
                "rows": profile.rows,
                "context_length": profile.context_length,
                "tokens": profile.tokens,
                "median_ms": round(statistics.median(profile.total_ms), 4),
                "total_ms": [round(value, 4) for value in profile.total_ms],
                "parts_ms": [{part: round(value, 4) for part, value in step.items()} for step in profile.parts_ms],
            }
            for profile in profiles
        ],
    }

"""Results as a table for people: on a terminal, or as Markdown."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bench.serve.metrics import METRICS, Metric, Spread, ratios, spread
from bench.serve.results import Results, Run

_FIRST_COLUMN_WIDTH = 18
_COLUMN_WIDTH = 19
"""Characters of a workload's column with its borders: its name, or two extremes, on one line."""


def print_table(results: Results, console: Console) -> None:
    """A line for each figure, with least and greatest behind the median where a workload was repeated."""
    if len(results.labels) == 1:
        header, rows = figure_rows(results)
        at_once = max(1, (console.width - _FIRST_COLUMN_WIDTH) // _COLUMN_WIDTH)
        for start in range(0, len(rows), at_once):
            console.print(_transposed(header, rows[start : start + at_once]))
    else:
        for workload in results.workloads:
            console.print(_comparison(results, workload))
    console.print(caption(results), markup=False, highlight=False)
    for line in failure_lines(results):
        console.print(line, markup=False, highlight=False)


def _transposed(header: list[str], rows: list[list[str]]) -> Table:
    """One column for each row: a terminal has more lines than columns."""
    table = Table("")
    for row in rows:
        title = "\n".join(row[header.index(name)] for name in ("workload", "load"))
        table.add_column(title, justify="right", min_width=_COLUMN_WIDTH - 3)
    for index in range(header.index("requests"), len(header)):
        table.add_row(header[index], *(row[index].replace(" (", "\n(") for row in rows))
    return table


def _comparison(results: Results, workload: str) -> Table:
    """One workload on both servers."""
    header, rows = figure_rows(results)
    ratio_header, ratios_of_all = ratio_rows(results)
    quotients = next(dict(zip(ratio_header, row, strict=True)) for row in ratios_of_all if row[0] == workload)
    ours = [row for row in rows if row[0] == workload]
    table = Table("", title=f"{workload}, {ours[0][1]}")
    for row in ours:
        table.add_column(row[2], justify="right")
    table.add_column(f"{results.labels[0]} / {results.labels[1]}", justify="right")
    for index in range(header.index("requests"), len(header)):
        table.add_row(header[index], *(row[index] for row in ours), quotients.get(header[index], ""))
    return table


def markdown(results: Results) -> str:
    """The same tables as Markdown, with their caption above."""
    parts = [caption(results), _markdown_table(*figure_rows(results))]
    if len(results.labels) > 1:
        parts += [f"{results.labels[0]} / {results.labels[1]}:", _markdown_table(*ratio_rows(results))]
    parts += failure_lines(results)
    return "\n\n".join(parts) + "\n"


def caption(results: Results) -> str:
    """What a reader needs to know to read the figures."""
    repeats = 1 + max((run.repeat for run in results.runs), default=0)
    medians = "One repeat" if repeats == 1 else f"Median (least–greatest) of {repeats} repeats"
    busiest = max((run.generator_cores for run in results.runs), default=0.0)
    stolen = max((run.machine_stolen for run in results.runs), default=0.0)
    models = ", ".join(f"{label}: {model}" for label, model in results.models.items())
    parts = [
        f"{models}. {medians}, seed {results.seed}. Goodput: share of requests with the first token within "
        f"{results.objectives.ttft_ms:g} ms and 99 % of their gaps within {results.objectives.itl_ms:g} ms.",
        f"The generator itself took up to {busiest:.2f} cores; up to {stolen:.1%} of the machine's time was stolen.",
    ]
    if results.server:
        parts.append(
            f"The server was ready after {results.server['ready_seconds']:.1f} s and held "
            f"{results.server['resident_mib_ready']:.0f} MiB then, "
            f"{results.server['resident_mib_end']:.0f} MiB at the end."
        )
    return " ".join(parts)


def figure_rows(results: Results) -> tuple[list[str], list[list[str]]]:
    """Header and rows: one row for each workload and server."""
    header = ["workload", "load", "server", "requests", "failed", *(metric.title for metric in METRICS)]
    rows: list[list[str]] = []
    for workload in results.workloads:
        for label in results.labels:
            runs = results.of(workload, label)
            if not runs:
                continue
            counts = [str(round(sum(run.figures[key] or 0 for run in runs))) for key in ("requests", "failed")]
            cells = [_figure(metric, runs) for metric in METRICS]
            rows.append([workload, runs[0].arrivals, label, *counts, *cells])
    return header, rows


def ratio_rows(results: Results) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the first server's figures over the second's."""
    ours, theirs = results.labels[:2]
    header = ["workload", *(metric.title for metric in METRICS)]
    rows: list[list[str]] = []
    for workload in results.workloads:
        pair = [[run.figures for run in results.of(workload, label)] for label in (ours, theirs)]
        rows.append([workload, *(_cell(ratios(pair[0], pair[1], metric.key), ".2f") for metric in METRICS)])
    return header, rows


def failure_lines(results: Results) -> list[str]:
    """One line for each kind of failure of each run."""
    return [
        f"{run.workload}, {run.label}, repeat {run.repeat}: {count} × {kind}: {run.first_failures[kind]}"
        for run in results.runs
        for kind, count in run.failures.items()
    ]


def _figure(metric: Metric, runs: list[Run]) -> str:
    values = spread([run.figures[metric.key] for run in runs])
    if metric.key.endswith(("share", "finished")):
        return _cell(values, ".2f")
    return _cell(values, ".0f" if values is not None and values.median >= 100 else ".1f")


def _cell(values: Spread | None, form: str) -> str:
    if values is None:
        return "-"
    middle = format(values.median, form)
    low, high = format(values.low, form), format(values.high, form)
    return middle if low == high else f"{middle} ({low}–{high})"


def _markdown_table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)

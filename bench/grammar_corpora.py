"""Counts what a folder of public schemas and grammars gets from ``scansion grammar check``.

``CORPORA=FOLDER python -m bench.grammar_corpora [--write]`` runs every ``*.jsonl`` record below the folder that has a
``kind`` and a ``spec`` through the tool, as one process, and prints a line for each source. ``--write`` puts the table
into ``docs/structured-outputs.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DOCUMENT = Path(__file__).parent.parent / "docs" / "structured-outputs.md"
_BEGIN, _END = "<!-- corpora: begin -->", "<!-- corpora: end -->"
_SKIPPED = frozenset({"remote", "annotation-only"})
_DRAFTS = {
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
"""Folders of a test suite whose schemas name no draft."""
_TOOL = ("grammar", "check", "--jsonl", "--json-undeclared-properties", "open")
_HEAD = "| source | compiled | crash or time-out | valid taken | invalid taken | invalid rejected | exact |"


@dataclass
class Count:
    """Sums over the records of one source."""

    records: int = 0
    compiled: int = 0
    failed: int = 0
    valid: int = 0
    valid_taken: int = 0
    reordered: int = 0
    """Valid instances taken whose keys the corpus lists in another order than the schema (+alt)."""
    invalid: int = 0
    """Of specifications that compiled."""
    invalid_taken: int = 0
    exact: int = 0

    def add(self, record: dict[str, Any], answer: dict[str, Any] | None) -> None:
        self.records += 1
        instances = record.get("instances", [])
        self.valid += sum(one["valid"] for one in instances)
        must_fail = "must-not-compile" in record.get("flags", [])
        if answer is None or _is_failure(answer):
            self.failed += 1
            return
        if not answer["compiled"]:
            self.exact += must_fail
            return
        self.compiled += 1
        outcomes = [
            (one["valid"], outcome["accepted"], one)
            for one, outcome in zip(instances, answer["instances"], strict=True)
        ]
        self.valid_taken += sum(valid and accepted for valid, accepted, _ in outcomes)
        self.reordered += sum(valid and accepted and _is_reordered(record, one) for valid, accepted, one in outcomes)
        self.invalid += sum(not valid for valid, _, _ in outcomes)
        self.invalid_taken += sum(not valid and accepted for valid, accepted, _ in outcomes)
        self.exact += not must_fail and all(valid == accepted for valid, accepted, _ in outcomes)

    def row(self, name: str) -> str:
        alt = f" (+alt {self.reordered})" if self.reordered else ""
        rejected = self.invalid - self.invalid_taken
        cells = (
            name,
            _share(self.compiled, self.records),
            str(self.failed),
            _share(self.valid_taken, self.valid) + alt,
            str(self.invalid_taken),
            _share(rejected, self.invalid),
            _share(self.exact, self.records),
        )
        return "| " + " | ".join(cells) + " |"

    def __add__(self, other: Count) -> Count:
        return Count(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def main(argv: list[str] | None = None) -> int:
    """Run the tool over the corpora and print the table."""
    parser = argparse.ArgumentParser(prog="bench.grammar_corpora", description=__doc__)
    parser.add_argument("--corpora", type=Path, default=os.environ.get("CORPORA"), help="folder (default: $CORPORA)")
    parser.add_argument("--write", action="store_true", help=f"put the table into {_DOCUMENT.name}")
    parser.add_argument("--check", nargs=argparse.REMAINDER, default=[], help="further arguments of the tool")
    options = parser.parse_args(argv)
    if options.corpora is None or not options.corpora.is_dir():
        parser.error("name a folder with corpora, by --corpora or the variable CORPORA")
    records = list(_records(options.corpora))
    answers = _answers(records, options.check)
    table = _table(records, answers)
    print(table)
    if options.write:
        _write(table)
    return 0


def _records(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(folder.rglob("*.jsonl")):
        group = path.relative_to(folder).parts
        for line in path.read_text(encoding="utf-8").split("\n"):
            if not line:
                continue
            record = json.loads(line)
            if "kind" in record and "spec" in record and not _SKIPPED & set(record.get("flags", [])):
                draft = next((_DRAFTS[part] for part in group if part in _DRAFTS), None)
                if draft is not None and isinstance(record["spec"], dict):
                    record["spec"].setdefault("$schema", draft)
                yield "/".join(group[:2] if len(group) > 2 else group[:1]), record


def _answers(records: Iterable[tuple[str, dict[str, Any]]], arguments: list[str]) -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-c", "from server.cli import main; main()", *_TOOL, *arguments]
    with tempfile.TemporaryFile("w+") as lines:
        for _, record in records:
            lines.write(json.dumps(record) + "\n")
        lines.seek(0)
        done = subprocess.run(command, stdin=lines, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(f"the tool ended with {done.returncode}; what it did not answer counts as a crash", file=sys.stderr)
    answers = (json.loads(line) for line in done.stdout.splitlines())
    return {answer["id"]: answer for answer in answers}


def _table(records: list[tuple[str, dict[str, Any]]], answers: dict[str, dict[str, Any]]) -> str:
    groups: dict[str, Count] = {}
    sources: dict[tuple[str, str], Count] = {}
    for group, record in records:
        for count in (
            groups.setdefault(group, Count()),
            sources.setdefault((group, record.get("source", "?")), Count()),
        ):
            count.add(record, answers.get(record["id"]))
    grammars = [count for name, count in groups.items() if name.startswith("grammars/")]
    rows = []
    for group, count in groups.items():
        rows.append(count.row(f"**{group}**"))
        rows += [one.row(source) for (owner, source), one in sources.items() if owner == group]
    if grammars:
        rows.append(sum(grammars, Count()).row("**all of grammars/**"))
    return "\n".join([_HEAD, "|---" * _HEAD.count("| ") + "|", *rows])


def _is_failure(answer: dict[str, Any]) -> bool:
    message = (answer.get("error") or {}).get("message") or ""
    return any(word in message for word in ("seconds", "process that compiled", "died", "memory"))


def _is_reordered(record: dict[str, Any], instance: dict[str, Any]) -> bool:
    properties = record["spec"].get("properties") if isinstance(record["spec"], dict) else None
    data = instance.get("data")
    if not isinstance(data, dict) or not isinstance(properties, dict):
        return False
    order = {name: index for index, name in enumerate(properties)}
    known = [order[name] for name in data if name in order]
    return known != sorted(known)


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole} ({100 * part / whole:.1f}%)" if whole else "-"


def _write(table: str) -> None:
    text = _DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    _DOCUMENT.write_text(f"{before}{_BEGIN}\n{table}\n{_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

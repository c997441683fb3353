"""Every verb of the Makefile is explained, and the small benchmarks run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from bench import sampling

ROOT = Path(__file__).resolve().parents[2]


def test_every_verb_is_in_the_help() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    verbs = re.search(r"^\.PHONY:(.*)$", text, re.MULTILINE)[1].split()
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    explained = {line.split()[1] for line in shown.splitlines()}
    assert set(verbs) - explained == {"help", "install-dev", "clean"}


@pytest.mark.parametrize("verb", ["step", "sampling", "grammar", "http", "drafters", "tools"])
def test_each_benchmark_passes_its_flags_on(verb: str) -> None:
    command = ["make", "--dry-run", f"bench-{verb}", "BENCH_FLAGS=--flag"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(r"bench[. ]\S+ --flag$", shown, re.MULTILINE)


def test_corpora_are_measured_where_they_are_named() -> None:
    for variables, count in (["CORPORA=/x"], 1), ([], 0):
        command = ["env", "-u", "CORPORA", "make", "--dry-run", "bench-grammar", *variables]
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert shown.count("bench.grammar_corpora") == count


def test_sampling_is_measured_feature_by_feature(capsys: pytest.CaptureFixture[str]) -> None:
    assert sampling.main(["--rows", "1", "2", "--vocab", "1000", "--seconds", "0.001"]) == 0
    shown = capsys.readouterr().out
    assert all(feature in shown for feature in ("greedy", "top_p=0.9", "all penalties"))

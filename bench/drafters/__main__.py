"""``make bench-drafters``: also ``python -m bench.drafters``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from tokenizers import Tokenizer

from bench.drafters import workloads
from bench.drafters.engine import Engine, Run
from constrained.config import JsonWhitespace
from constrained.vocabulary import Vocabulary
from model_runner.config import RunnerConfig
from model_runner.runner import ModelRunner
from scheduler.config import SchedulerConfig
from scheduler.drafters.combination import CombinedDrafter
from scheduler.messages import GenerateRequest
from server.models.resolve import resolve

PARTS = ("lossless", "steps", "clients", "ngram")
OFF: Mapping[str, object] = {"jump_forward": False, "speculative": "off"}
CONFIGS: Mapping[str, Mapping[str, object]] = {
    "jump-forward": {"jump_forward": True},
    "ngram": {"jump_forward": False, "speculative": "ngram"},
    "jump-forward and ngram": {"jump_forward": True, "speculative": "ngram"},
}


_WHITESPACES: tuple[JsonWhitespace, ...] = ("compact", "bounded")


@dataclass(frozen=True)
class Bench:
    """A loaded model and engines over it."""

    runner: ModelRunner
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    eos_token_ids: tuple[int, ...]

    def engine(
        self, config: Mapping[str, object], *, whitespace: JsonWhitespace = "compact", pages: int | None = None
    ) -> Engine:
        settings: dict[str, Any] = {**OFF, **config}
        return Engine(
            self.runner,
            self.tokenizer,
            self.vocabulary,
            self.eos_token_ids,
            SchedulerConfig(endpoint="", max_running_requests=16, prefix_cache=pages is not None, **settings),
            whitespace=whitespace,
            num_pages=pages,
        )

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 1 when an answer in float32 depended on what was drafted."""
    options = _parser().parse_args(argv)
    out = Console(highlight=False, soft_wrap=True)
    assets = resolve(options.model)
    runner = ModelRunner(
        RunnerConfig(
            model_path=assets.weights_path,
            dtype=options.dtype,
            device=options.device,
            kv_cache_tokens=16384,
            num_threads=options.num_threads,
        )
    )
    tokenizer_json = Path(assets.tokenizer_json)
    bench = Bench(
        runner,
        Tokenizer.from_file(str(tokenizer_json)),
        Vocabulary.from_tokenizer_json(tokenizer_json),
        assets.eos_token_ids,
    )
    out.print(f"{assets.name}, {str(runner.dtype).removeprefix('torch.')} on {runner.device}")
    is_same = True
    for part in options.only or PARTS:
        if part == "lossless":
            is_same = lossless(bench, options, out)
        elif part == "steps":
            steps(bench, options, out)
        elif part == "clients":
            clients(bench, options, out)
        else:
            ngram(bench, options, out)
    return 0 if is_same or options.dtype != "float32" else 1


def lossless(bench: Bench, options: argparse.Namespace, out: Console) -> bool:
    """Answers with each drafter, alone, in batches of 16 and under preemption, against plain decoding."""
    requests = workloads.varied(options.requests, bench.encode, max_tokens=options.tokens)
    plain = bench.engine(OFF).run(requests, together=False)
    is_same = True
    for name, config in CONFIGS.items():
        for how in ("alone", "batch", "preempted"):
            engine = bench.engine(config, pages=20 if how == "preempted" else None)
            run = engine.run(requests, together=how != "alone")
            different = sum(run.answers.get(key) != answer for key, answer in plain.answers.items())
            preemptions = engine.scheduler.planner.counters.preemptions
            accepted = sum(one.accepted_tokens for one in engine.stats().values())
            out.print(
                f"lossless: {name}, {how}: {different} of {len(plain.answers)} answers differ "
                f"({preemptions} preemptions, {accepted} drafted tokens accepted of {run.num_tokens}, "
                f"{len(run.errors) - len(plain.errors)} more errors)"
            )
            is_same &= not different and run.errors == plain.errors
    return is_same


def steps(bench: Bench, options: argparse.Namespace, out: Console) -> None:
    """Steps and tokens a second of one client, against the share of forced tokens."""
    for name, schema in (("long keys", workloads.FORCED), ("long values", workloads.FREE)):
        for whitespace in _WHITESPACES:
            requests = workloads.structured(schema, options.structured, bench.encode)
            slow, fast = _compare(bench, options, requests, {"jump_forward": True}, whitespace, together=False)
            share = _forced_share(bench, requests, slow, whitespace)
            saved = 1 - fast.steps / slow.steps
            gain = slow.seconds / fast.seconds
            out.print(
                f"steps: {name}, {whitespace}: forced share {share:.3f}; steps {slow.steps} -> {fast.steps}, "
                f"saved {saved:.3f} = {saved / share:.2f} of the share; tokens/s x {gain:.2f} "
                f"({gain * (1 - share):.2f} of 1 / (1 - share)); same answers: {slow.answers == fast.answers}"
            )


def clients(bench: Bench, options: argparse.Namespace, out: Console) -> None:
    """16 clients at once."""
    for name, schema in (("long keys", workloads.FORCED), ("long values", workloads.FREE)):
        requests = workloads.structured(schema, 16, bench.encode)
        slow, fast = _compare(bench, options, requests, {"jump_forward": True}, "compact", together=True)
        out.print(
            f"16 clients: {name}: tokens/s x {slow.seconds / fast.seconds:.2f}, steps {slow.steps} -> {fast.steps}"
        )


def ngram(bench: Bench, options: argparse.Namespace, out: Console) -> None:
    """What n-gram drafts cost where nothing repeats, and bring where much does."""
    ngram_on: Mapping[str, object] = {"speculative": "ngram"}
    requests = workloads.unrepeated(2, bench.encode, max_tokens=options.tokens * 4)
    slow, fast = _compare(bench, options, requests, ngram_on, "compact", together=False)
    cost = _propose_seconds(bench, requests, ngram_on)
    out.print(
        f"ngram: text that never repeats: tokens/s x {slow.seconds / fast.seconds:.3f}, steps {slow.steps} -> "
        f"{fast.steps}; {cost * 1e6:.1f} us a step to propose"
    )
    requests = workloads.copying(3, bench.encode, max_tokens=options.tokens * 2)
    slow, fast = _compare(bench, options, requests, ngram_on, "compact", together=False)
    out.print(f"ngram: copying: tokens/s x {slow.seconds / fast.seconds:.2f}, steps {slow.steps} -> {fast.steps}")


def _compare(
    bench: Bench,
    options: argparse.Namespace,
    requests: Sequence[GenerateRequest],
    config: Mapping[str, object],
    whitespace: JsonWhitespace,
    *,
    together: bool,
) -> tuple[Run, Run]:
    """The fastest of some runs each way, taken in turn so that a change of the machine's load meets both."""
    engines = bench.engine(OFF, whitespace=whitespace), bench.engine(config, whitespace=whitespace)
    runs: tuple[list[Run], list[Run]] = ([], [])
    for engine in engines:
        engine.run(requests[:1], together=together)  # compiles, and lets the drafter see a form once
    for _ in range(options.repeat):
        for engine, results in zip(engines, runs, strict=True):
            results.append(engine.run(requests, together=together))
    return min(runs[0], key=_seconds), min(runs[1], key=_seconds)


def _seconds(run: Run) -> float:
    return run.seconds


def _forced_share(bench: Bench, requests: Sequence[GenerateRequest], run: Run, whitespace: JsonWhitespace) -> float:
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


def _propose_seconds(bench: Bench, requests: Sequence[GenerateRequest], config: Mapping[str, object]) -> float:
    """Mean time of one call of the drafter."""
    engine = bench.engine(config)
    timed = _Timed(engine.drafter)
    engine.drafter.propose = timed  # type: ignore[method-assign, assignment]
    engine.run(requests, together=False)
    return timed.seconds / max(1, timed.calls)


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


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m bench.drafters", description=__doc__)
    result.add_argument("--model", help="as for scansion serve; none: the default model")
    result.add_argument("--dtype", choices=["auto", "bfloat16", "float16", "float32"], default="float32")
    result.add_argument("--device", default="auto")
    result.add_argument("--num-threads", type=int)
    result.add_argument("--only", action="append", choices=PARTS, help="a part; several may be given")
    result.add_argument("--requests", type=int, default=200, help="varied requests whose answers are compared")
    result.add_argument("--tokens", type=int, default=64, help="longest answer of those")
    result.add_argument("--structured", type=int, default=8, help="structured requests that are timed")
    result.add_argument("--repeat", type=int, default=3, help="timed runs each way, of which the fastest counts")
    return result


if __name__ == "__main__":
    sys.exit(main())

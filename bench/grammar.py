"""Time of the grammar layer, part by part: ``python -m bench.grammar`` (or ``make bench-grammar``).

Masks are measured along real documents in the model's own tokens, as a serving process fills them; compiles in the
warm pool of processes, each with property names that nothing has seen before, from asking to the object in hand.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from bench.serve.schemas import FORMS, Schema, fresh_names, same_name
from constrained.config import GrammarConfig
from constrained.engines.auto import AutoGrammarBackend
from constrained.engines.base import BaseGrammarBackend, BaseGrammarObject, InvalidGrammarObject, create_grammar_backend
from constrained.environment import GrammarEnvironment
from constrained.masks.slots import GrammarMasks
from constrained.spec import GrammarSpec
from constrained.vocabulary import Vocabulary

DOCUMENTS: dict[str, list[Any]] = {
    "ticket": [
        {
            "subject": "Lamp arrived late and broken",
            "category": "delivery",
            "urgency": 4,
            "order_id": "AK-4711",
            "refund_wanted": True,
            "labels": ["late", "broken", "refund"],
        }
    ],
    "recipe": [
        {
            "title": "Lentil soup with lemon",
            "cook": None,
            "minutes": 45,
            "ingredients": [
                {"name": "red lentils", "amount": 250, "unit": "g"},
                {"name": "lemon", "amount": 1.5, "unit": "piece"},
            ],
        }
    ],
    "action": [
        {"action": "book_room", "city": "Lisbon", "day": "friday", "seats": 12},
        {"action": "send_invite", "guests": ["Ada Lovelace", "Grace Hopper"], "day": "monday"},
    ],
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.grammar", description=__doc__)
    parser.add_argument("--model", help="whose tokenizer; the embedded default if left out")
    parser.add_argument("--rows", type=int, default=128, help="rows of the batched fill")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=20, help="passes over each document")
    parser.add_argument("--compiles", type=int, default=20, help="fresh schemas for each backend")
    parser.add_argument("--backends", nargs="+", default=["auto", "llguidance", "xgrammar", "outlines"])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    from server.models.resolve import resolve

    assets = resolve(options.model, load_format="auto")
    vocabulary = Vocabulary.from_tokenizer_json(assets.tokenizer_json)
    environment = GrammarEnvironment(vocabulary, len(vocabulary), assets.eos_token_ids, GrammarConfig(timeout=120.0))
    tokenizer = Tokenizer.from_file(str(assets.tokenizer_json))
    console = Console()
    console.print(f"{assets.name}: {len(vocabulary)} tokens")
    states = states_by_backend(environment, tokenizer, options.backends)
    console.print(fill_table(states, options.repeat))
    console.print(batch_table(environment, states, options.rows, options.threads))
    console.print(compile_table(environment, options.backends, options.compiles))
    return 0


def states_by_backend(
    environment: GrammarEnvironment, tokenizer: Tokenizer, backends: Sequence[str]
) -> dict[str, list[tuple[BaseGrammarObject, list[int]]]]:
    """Each backend's objects and the token ids of a document that they take."""
    engines = AutoGrammarBackend(environment)
    found: dict[str, list[tuple[BaseGrammarObject, list[int]]]] = {}
    for backend in backends:
        for form in FORMS:
            spec = GrammarSpec(kind="json_schema", value=json.dumps(form.schema(same_name)), backend=backend)
            grammar = engines._init_value_dispatch(spec)
            if isinstance(grammar, InvalidGrammarObject):
                continue
            for document in DOCUMENTS[form.name]:
                ids = tokenizer.encode(json.dumps(document), add_special_tokens=False).ids
                found.setdefault(backend, []).append((grammar, list(ids)))
    return found


def fill_table(states: dict[str, list[tuple[BaseGrammarObject, list[int]]]], repeat: int) -> Table:
    """Microseconds of one row's fill. Every pass walks a fresh copy, so that first visits to a state count too."""
    table = Table("backend", "rows filled", "mean", "p50", "p99", "max", title="mask fill per row, µs, one thread")
    for backend, documents in states.items():
        times: list[float] = []
        for grammar, token_ids in documents:
            mask = grammar.allocate_vocab_mask(grammar.environment.vocab_size, 1)
            for _ in range(repeat):
                state = grammar.copy()
                for token_id in token_ids:
                    times.append(_microseconds(state.fill_vocab_mask, mask, 0))
                    state.accept_token(token_id)
        times.sort()
        figures = (statistics.fmean(times), times[len(times) // 2], times[len(times) * 99 // 100], times[-1])
        table.add_row(backend, str(len(times)), *(f"{figure:.1f}" for figure in figures))
    return table


def batch_table(
    environment: GrammarEnvironment,
    states: dict[str, list[tuple[BaseGrammarObject, list[int]]]],
    rows: int,
    threads: Sequence[int],
) -> Table:
    """Milliseconds to fill the rows of one step, whose states stand all along the documents."""
    table = Table("backend", *(f"{t} threads" for t in threads), title=f"{rows} rows, ms (median of 30)")
    for backend, documents in states.items():
        cells = []
        for count in threads:
            config = GrammarConfig(fill_threads=count, max_draft_tokens=0)
            slots = GrammarEnvironment(
                environment.vocabulary, environment.vocab_size, environment.eos_token_ids, config
            )
            masks = GrammarMasks(slots, rows)
            objects = [_advanced(*documents[row % len(documents)], row // len(documents)) for row in range(rows)]
            for grammar in objects:
                grammar.environment = slots
            times = []
            for _ in range(31):
                masks.begin()
                times.append(_microseconds(masks.fill, objects, range(rows)))
            cells.append(f"{statistics.median(times[1:]) / 1000:.2f}")
        table.add_row(backend, *cells)
    return table


def compile_table(environment: GrammarEnvironment, backends: Sequence[str], count: int) -> Table:
    """Milliseconds from asking to the object in hand, and of asking again."""
    table = Table("backend", "compiles", "median", "p90", "worker's part", "known again", title="schema to grammar, ms")
    backend = create_grammar_backend(environment)
    if backend is None:
        raise RuntimeError("the default configuration has a backend")
    try:
        _ready(backend, GrammarSpec(kind="regex", value="warm"))
        for name in backends:
            rng = random.Random(7)
            new, inside, again = [], [], []
            for index in range(count):
                schema: Schema = FORMS[index % len(FORMS)].schema(fresh_names(rng))
                spec = GrammarSpec(kind="json_schema", value=json.dumps(schema), backend=name)
                started = time.perf_counter()
                grammar = _ready(backend, spec)
                new.append((time.perf_counter() - started) * 1e3)
                if isinstance(grammar, InvalidGrammarObject):
                    new.pop()
                    continue
                if grammar.grammar_stats is not None:
                    inside.append(grammar.grammar_stats.compile_seconds * 1e3)
                again.append(_microseconds(_ready, backend, spec) / 1e3)
            if not new:
                continue
            new.sort()
            table.add_row(
                name,
                str(len(new)),
                f"{statistics.median(new):.1f}",
                f"{new[len(new) * 9 // 10]:.1f}",
                f"{statistics.median(inside):.1f}",
                f"{statistics.median(again):.3f}",
            )
    finally:
        backend.shutdown()
    return table


def _ready(backend: BaseGrammarBackend, spec: GrammarSpec) -> BaseGrammarObject:
    value, _ = backend.get_cached_or_future_value(spec)
    return value.result() if isinstance(value, Future) else value


def _advanced(grammar: BaseGrammarObject, token_ids: list[int], steps: int) -> BaseGrammarObject:
    state = grammar.copy()
    for token_id in token_ids[: steps % len(token_ids)]:
        state.accept_token(token_id)
    return state


def _microseconds(work: Callable[..., object], *arguments: object) -> float:
    started = time.perf_counter()
    work(*arguments)
    return (time.perf_counter() - started) * 1e6


if __name__ == "__main__":
    raise SystemExit(main())

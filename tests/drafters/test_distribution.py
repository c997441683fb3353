"""Unseeded draws have the model's exact distribution, whatever is drafted."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from constrained.engines.base import BaseGrammarObject
from constrained.spec import GrammarSpec
from model_runner.forward_row import ForwardRow
from sampling.params import SamplingParams
from scheduler.drafters.draft_model import DraftModelDrafter
from scheduler.memory.kv_pool import KvPool
from scheduler.messages import GenerateRequest

NUM_REQUESTS, NUM_CHOICES, LENGTH = 12, 50, 3
GRAMMAR = GrammarSpec(kind="regex", value="ox[0-3]q")
Paths = dict[tuple[int, ...], float]


def exact(tiny: Any, prompt: list[int], legal: Callable[[tuple[int, ...], np.ndarray], np.ndarray | None]) -> Paths:
    """Probability of every output. ``legal`` gives the tokens that may follow one, or ``None`` at its end."""
    paths: Paths = {}

    def walk(output: tuple[int, ...], probability: float) -> None:
        tokens = [*prompt, *output]
        pages = list(range(-(-len(tokens) // 4)))
        logits = tiny.runner.forward([ForwardRow(tokens, 0, pages, 1)])[0].double().numpy()
        following = legal(output, logits)
        if following is None:
            paths[output] = probability
            return
        weights = np.exp(logits[following] - logits[following].max())
        for token, share in zip(following, weights / weights.sum(), strict=True):
            walk((*output, int(token)), probability * share)

    walk((), 1.0)
    assert sum(paths.values()) == pytest.approx(1.0)
    return paths


def among(token_ids: list[int]) -> Callable[[tuple[int, ...], np.ndarray], np.ndarray | None]:
    return lambda output, logits: np.array(token_ids) if len(output) < LENGTH else None


def likeliest(output: tuple[int, ...], logits: np.ndarray) -> np.ndarray | None:
    return np.argsort(-logits)[:3] if len(output) < LENGTH else None


def in_grammar(tiny: Any) -> Callable[[tuple[int, ...], np.ndarray], np.ndarray | None]:
    grammars = tiny.engine().grammars

    def legal(output: tuple[int, ...], logits: np.ndarray) -> np.ndarray | None:
        grammar = grammars.fresh(GRAMMAR)
        for token in output:
            grammar.accept_token(token)
        if grammar.is_terminated():
            return None
        mask = BaseGrammarObject.allocate_vocab_mask(tiny.runner.vocab_size, 1, torch.device("cpu"))
        grammar.fill_vocab_mask(mask, 0)
        words = mask[0].numpy()
        return np.array([token for token in range(tiny.runner.vocab_size) if words[token // 32] >> (token % 32) & 1])

    return legal


def assert_fits(tiny: Any, engine: Any, request: GenerateRequest, paths: Paths, source: str) -> None:
    requests = [
        GenerateRequest(
            request_id=f"{index}",
            prompt_token_ids=request.prompt_token_ids,
            sampling=request.sampling,
            grammar=request.grammar,
            prediction_token_ids=request.prediction_token_ids,
        )
        for index in range(NUM_REQUESTS)
    ]
    run = engine.run(requests, together=True)
    assert not run.errors
    stats = engine.stats()[source]
    assert stats.accepted_tokens > 50, "nothing was drafted, nothing is tested"
    seen = Counter(tuple(answer.token_ids) for answer in run.answers.values())
    total = NUM_REQUESTS * NUM_CHOICES
    assert sum(seen.values()) == total
    assert set(seen) <= set(paths), "an output that cannot be"
    common = [path for path, probability in paths.items() if probability * total >= 5]
    expected = [paths[path] * total for path in common]
    observed = [seen[path] for path in common]
    rest = total - sum(expected)
    if rest >= 5:
        expected, observed = [*expected, rest], [*observed, total - sum(observed)]
        assert chisquare(observed, expected).pvalue > 1e-6
    else:
        scale = sum(observed) / sum(expected)
        assert total - sum(observed) <= 30
        assert chisquare(observed, [value * scale for value in expected]).pvalue > 1e-6


def unseeded(tiny: Any, prompt: list[int], **options: Any) -> GenerateRequest:
    top = {key: options.pop(key) for key in ("grammar", "prediction_token_ids") if key in options}
    sampling = SamplingParams(**{"max_tokens": LENGTH, "temperature": 1.0, "n": NUM_CHOICES, **options})
    return GenerateRequest(request_id="a", prompt_token_ids=prompt, sampling=sampling, **top)


def test_with_forced_text(tiny: Any) -> None:
    request = unseeded(tiny, tiny.encode("The quick "), grammar=GRAMMAR, max_tokens=16)
    paths = exact(tiny, list(request.prompt_token_ids), in_grammar(tiny))
    assert_fits(tiny, tiny.engine(jump_forward=True), request, paths, "grammar")


@pytest.mark.parametrize("source", ["ngram", "prediction"])
def test_with_copies(tiny: Any, source: str) -> None:
    first, second, third = tiny.encode("fox")[0], tiny.encode("dog")[0], tiny.encode("quick")[0]
    allowed = [first, second, third]
    prompt = [*allowed, first, second, third, second, first, second]
    options: dict[str, Any] = {"allowed_token_ids": tuple(allowed)}
    if source == "prediction":
        options["prediction_token_ids"] = [third, first, second]
    paths = exact(tiny, prompt, among(allowed))
    assert set(paths) == set(itertools.product(allowed, repeat=LENGTH))
    engine = tiny.engine(speculative="ngram" if source == "ngram" else "off")
    assert_fits(tiny, engine, unseeded(tiny, prompt, **options), paths, source)


def test_with_a_draft_model(tiny: Any, make_tiny: Callable[..., Any]) -> None:
    model = make_tiny(0)
    source = DraftModelDrafter(model.runner, KvPool(400, 4), context_length=512, max_tokens=6, max_batch_tokens=64)
    request = unseeded(tiny, tiny.encode("The quick brown "), top_k=3)
    paths = exact(tiny, list(request.prompt_token_ids), likeliest)
    engine = tiny.engine(speculative="draft-model", draft_model=source)
    assert_fits(tiny, engine, request, paths, source.name)

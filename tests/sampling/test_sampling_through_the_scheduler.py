"""Real scheduler, executor and sampler over a random model, against one request at a time in plain Python."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from sampling_reference import ReferenceChoice
from scheduler_fakes import EOS, PAGE_SIZE, VOCAB_SIZE, AnyDrafter, Harness

from model_runner.forward_row import ForwardRow
from sampling.params import SamplingParams
from sampling.sampler import SamplerState
from scheduler.execution.step_executor import StepExecutor
from scheduler.requests.request import Request

REQUESTS: dict[str, dict[str, Any]] = {
    "repetition": {"temperature": 0.0, "repetition_penalty": 1.5},
    "repetition of the prompt": {"temperature": 0.0, "repetition_penalty": 1.5, "penalize_prompt": True},
    "frequency": {"temperature": 0.0, "frequency_penalty": 0.7},
    "negative": {"temperature": 0.5, "frequency_penalty": -0.5, "presence_penalty": -0.3},
    "presence": {"temperature": 0.0, "presence_penalty": 1.1},
    "everything": {
        "temperature": 0.8,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.2,
        "min_tokens": 20,
        "ignore_eos": False,
        "stop_token_ids": (3, 4),
        "logit_bias": {EOS: 3.0, 5: -1.0},
        "bad_words_token_ids": ((7,), (8, 9)),
        "n": 3,
    },
    "minimum": {"temperature": 1.0, "min_tokens": 9, "ignore_eos": False, "logit_bias": {EOS: 9.0}},
    "few tokens": {"temperature": 1.0, "frequency_penalty": 0.3, "allowed_token_ids": tuple(range(10, 20)), "n": 2},
    "plain": {"temperature": 1.0},
}
MAX_TOKENS = 40


def logits_behind(context: Sequence[int]) -> torch.Tensor:
    """A model that favours few tokens, so that counts grow, and looks at the whole context."""
    generator = torch.Generator().manual_seed(zlib.crc32(repr(list(context)).encode()))
    return torch.randn(VOCAB_SIZE, generator=generator) + torch.linspace(4, -4, VOCAB_SIZE)


class RandomModel:
    """Keeps the tokens themselves as its KV, in the pages it is given."""

    vocab_size = VOCAB_SIZE
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.kv: dict[tuple[int, int], int] = {}

    def forward(self, rows: Sequence[ForwardRow], previous_token_ids: torch.Tensor | None = None) -> torch.Tensor:
        logits = []
        for row in rows:
            tokens = list(row.token_ids)
            if row.pending_index is not None:
                assert previous_token_ids is not None
                tokens[-1] = int(previous_token_ids[row.pending_index])
            for position, token in enumerate(tokens, row.start):
                self.kv[row.block_table[position // PAGE_SIZE], position % PAGE_SIZE] = token
            end = row.start + len(tokens)
            context = [self.kv[row.block_table[p // PAGE_SIZE], p % PAGE_SIZE] for p in range(end)]
            logits += [logits_behind(context[: p + 1]) for p in range(end - row.num_logits, end)]
        return torch.stack(logits) if logits else torch.empty(0, VOCAB_SIZE)


class Oracle(AnyDrafter):
    """Knows the answers, and is wrong now and then."""

    def __init__(self, answers: dict[tuple[str, int], list[int]]) -> None:
        self.answers = answers
        self.random = random.Random(1)

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        answer = self.answers[request.group.message.request_id, request.choice_index]
        right = answer[request.num_output : request.num_output + min(max_tokens, self.random.randrange(6))]
        return [token if self.random.random() < 0.8 else self.random.randrange(VOCAB_SIZE) for token in right]


def prompt_of(name: str) -> list[int]:
    return [len(name), *range(12), 5, 5]


def params_of(name: str) -> SamplingParams:
    return SamplingParams(**{"max_tokens": MAX_TOKENS, "seed": len(name), "ignore_eos": True, **REQUESTS[name]})


def decoded_alone(name: str, choice_index: int) -> list[int]:
    params = params_of(name)
    assert params.seed is not None
    choice = ReferenceChoice(params, prompt_of(name), (EOS,), params.seed, choice_index)
    stops = {*params.stop_token_ids, *(() if params.ignore_eos else (EOS,))}
    while len(choice.output_token_ids) < params.max_tokens:
        logits = logits_behind([*choice.prompt_token_ids, *choice.output_token_ids]).numpy()
        (token_id,) = choice.step(np.stack([logits]), (), [None])
        if token_id in stops and len(choice.output_token_ids) >= params.min_tokens:
            break
    return choice.output_token_ids


@pytest.fixture(scope="module")
def expected() -> dict[tuple[str, int], list[int]]:
    answers = {(name, index): decoded_alone(name, index) for name in REQUESTS for index in range(params_of(name).n)}
    # The penalties matter here, and both ends of the minimum are met.
    assert len({tuple(answers[name, 0]) for name in REQUESTS}) == len(REQUESTS)
    assert 9 < len(answers["minimum", 0]) < MAX_TOKENS
    assert max(answers["few tokens", 0].count(token) for token in range(10, 20)) > 3
    return answers


@pytest.mark.parametrize("drafts", [False, True], ids=["plain", "drafts"])
@pytest.mark.parametrize("max_in_flight", [0, 1], ids=["in order", "overlapped"])
@pytest.mark.parametrize(("budget", "num_pages"), [(256, 400), (7, 400), (24, 40)], ids=["free", "chunks", "preempted"])
def test_every_answer_is_that_of_plain_python(
    drafts: bool, max_in_flight: int, budget: int, num_pages: int, expected: dict[tuple[str, int], list[int]]
) -> None:
    sampler = SamplerState(VOCAB_SIZE, (EOS,), torch.device("cpu"))
    executor = StepExecutor(RandomModel(), sampler, overlap=True)
    executor.max_in_flight = max_in_flight
    drafter = Oracle(expected) if drafts else None
    harness = Harness(max_in_flight, executor=executor, num_pages=num_pages, drafter=drafter, max_batch_tokens=budget)
    for index, name in enumerate(REQUESTS):
        harness.submit(name, prompt_of(name), **{"max_tokens": MAX_TOKENS, "seed": len(name), **REQUESTS[name]})
        if index % 3 == 2:
            harness.step(2)  # requests join while others run
    harness.run()
    assert {key: harness.tokens(*key) for key in expected} == expected
    assert sampler.orchestrator.num_bytes == 0
    if num_pages == 40:
        assert harness.planner.counters.preemptions > 3
    if drafts:
        accepted = harness.scheduler.counters.draft_tokens_accepted
        assert 0 < accepted < harness.scheduler.counters.draft_tokens_proposed

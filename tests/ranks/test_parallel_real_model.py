"""The embedded SmolLM2, with its nine heads and three key-value heads, on three ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import RankProcesses
from model_functions import answer_greedily, answer_greedily_on_ranks, load
from tokenizers import Tokenizer

from server.models.resolve import resolve

BEGINNINGS = (
    "The capital of",
    "Water boils at",
    "def add(a, b):\n   ",
    "Once upon a time",
    "The largest planet is",
    "Dear Sir or Madam,",
    "A list of fruit:",
    "2 + 2 =",
    '{"name": "Ann", "age":',
    "In the year",
)
SUBJECTS = (" France", " the sea", " my brother", " Monday", " one hundred")


@pytest.mark.timeout(240)
def test_greedy_answers_on_three_ranks_are_those_of_one(rank_processes: RankProcesses, smollm2_gguf: Path) -> None:
    tokenizer = Tokenizer.from_file(str(resolve(str(smollm2_gguf)).tokenizer_json))
    prompts = [tokenizer.encode(beginning + subject).ids for beginning in BEGINNINGS for subject in SUBJECTS]
    assert len(prompts) == 50
    expected = answer_greedily(load(smollm2_gguf, kv_cache_tokens=4096), prompts, 8)
    assert len({tuple(answer) for answer in expected}) > 40  # it does not say the same to everything
    for answers in rank_processes.run(answer_greedily_on_ranks, smollm2_gguf, prompts, 8, size=3, timeout=200):
        assert answers == expected

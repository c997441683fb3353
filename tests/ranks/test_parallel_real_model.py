"""The embedded SmolLM2, with its nine heads and three key-value heads, on three ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import RankProcesses
from model_functions import answer_greedily, answer_greedily_on_ranks, load
from transformers import AutoTokenizer

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


def test_greedy_answers_on_three_ranks_are_those_of_one(rank_processes: RankProcesses, smollm2_gguf: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name)
    prompts = [tokenizer(beginning + subject)["input_ids"] for beginning in BEGINNINGS for subject in SUBJECTS]
    assert len(prompts) == 50
    expected = answer_greedily(load(smollm2_gguf, kv_cache_tokens=4096), prompts, 10)
    assert len({tuple(answer) for answer in expected}) > 40  # it does not say the same to everything
    for answers in rank_processes.run(answer_greedily_on_ranks, smollm2_gguf, prompts, 10, size=3, timeout=100):
        assert answers == expected

"""The embedded SmolLM2: the same answers as transformers, the same bits in any company, memory held once."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from model_runner.config import RunnerConfig
from model_runner.forward_row import ForwardRow
from model_runner.runner import ModelRunner

PROMPTS = ("What is the capital of France? Answer in JSON.", "Count from one to five.", "Why is the sky blue?")


def chatml(question: str) -> str:
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name)


@pytest.fixture(scope="module")
def exact_runner(smollm2_gguf: Path) -> ModelRunner:
    return ModelRunner(
        RunnerConfig(model_path=smollm2_gguf, dtype="float32", device="cpu", kv_cache_tokens=4096, num_threads=1)
    )


def generate(runner: ModelRunner, prompt: list[int], pages: range, count: int) -> list[int]:
    token_ids = list(prompt)
    start = 0
    while len(token_ids) < len(prompt) + count:
        logits = runner.forward([ForwardRow(token_ids[start:], start, list(pages), 1)])
        start = len(token_ids)
        token_ids.append(int(logits.argmax()))
    return token_ids[len(prompt) :]


def test_greedy_tokens_and_logits_are_those_of_transformers(
    smollm2_gguf: Path, tokenizer: Any, exact_runner: ModelRunner
) -> None:
    reference: Any = AutoModelForCausalLM.from_pretrained(
        smollm2_gguf.parent, gguf_file=smollm2_gguf.name, dtype=torch.float32
    )
    for prompt in PROMPTS:
        token_ids = tokenizer(chatml(prompt))["input_ids"]
        answer = generate(exact_runner, token_ids, range(16), 12)
        with torch.no_grad():
            logits = reference(torch.tensor([token_ids + answer])).logits[0]
        assert logits[len(token_ids) - 1 : -1].argmax(-1).tolist() == answer
        mine = exact_runner.forward([ForwardRow(token_ids + answer, 0, list(range(16)), len(answer))])
        torch.testing.assert_close(mine, logits[len(token_ids) :], atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_capital_of_france_in_json(dtype: str, smollm2_gguf: Path, tokenizer: Any) -> None:
    runner = ModelRunner(
        RunnerConfig(model_path=smollm2_gguf, dtype=dtype, device="cpu", kv_cache_tokens=1024)  # type: ignore[arg-type]
    )
    answer = generate(runner, tokenizer(chatml(PROMPTS[0]))["input_ids"], range(16), 8)
    # Whether the object ends there is a tie in bfloat16, which processors break differently.
    assert tokenizer.decode(answer).startswith('{"city": "Paris"')


def test_no_bit_depends_on_neighbours_chunks_or_drafts(
    exact_runner: ModelRunner, run_in_chunks: Callable[..., torch.Tensor], make_row: Callable[..., ForwardRow]
) -> None:
    generator = random.Random(0)
    token_ids = generator.choices(range(exact_runner.vocab_size), k=150)
    alone = run_in_chunks(exact_runner, token_ids, range(10))
    assert torch.equal(run_in_chunks(exact_runner, token_ids, range(10, 20), cuts=[1, 2, 70, 129]), alone)
    neighbours = [
        make_row(generator.choices(range(1000), k=length), range(begin, begin + 4), num_logits=1)
        for length, begin in ((1, 40), (1, 44), (5, 48), (60, 52))
    ]
    exact_runner.forward([make_row(token_ids, range(20, 30), stop=140, num_logits=0)])
    drafted = ForwardRow([*token_ids[140:144], 5, 6], 140, list(range(20, 30)), 6)
    logits = exact_runner.forward([*neighbours[:2], drafted, *neighbours[2:]])
    assert torch.equal(logits[2:6], alone[140:144])


MEASURE_PEAK = """
import sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM
import transformers.modeling_rope_utils
import gguf
from model_runner.config import RunnerConfig
from model_runner.runner import ModelRunner

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

before = status("VmRSS:")
settings = dict(dtype=sys.argv[2], device="cpu", kv_cache_tokens=16)
runner = ModelRunner(RunnerConfig(model_path=Path(sys.argv[1]), **settings))
print(status("VmHWM:") - before, status("VmRSS:") - before, runner.weight_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_peaks_below_twice_the_weights_and_holds_them_once(smollm2_gguf: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", MEASURE_PEAK, str(smollm2_gguf), "bfloat16"],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    peak, resident, weight_bytes = map(int, result.stdout.split())
    assert weight_bytes == 134_515_008 * 2
    assert peak < 2 * weight_bytes, f"{peak / weight_bytes:.2f} times the weights"
    # What is more than the weights is the mapped file, the metadata's token lists and torch's own start.
    assert resident < 1.75 * weight_bytes, f"{resident / weight_bytes:.2f} times the weights"

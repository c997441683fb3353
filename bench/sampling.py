"""Time of one sampling step, feature by feature: ``python -m bench.sampling`` (or ``make bench-sampling``).

Each feature is measured against sampling with no feature, and against the naive way: one dense ``[B, V]`` buffer for
each penalty, a full sort for the filters, ``torch.multinomial`` for the draw.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from sampling.params import SamplingParams
from sampling.sampler import SampleRow, SamplerState

OUTPUT_LENGTH = 200
"""Tokens each row has generated when it is measured: penalties look at those."""

FEATURES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {},
    "top_k=50": {"top_k": 50},
    "top_p=0.9": {"top_p": 0.9},
    "min_p=0.05": {"min_p": 0.05},
    "top_k, top_p, min_p": {"top_k": 50, "top_p": 0.9, "min_p": 0.05},
    "greedy + repetition": {"temperature": 0.0, "repetition_penalty": 1.2},
    "greedy + frequency": {"temperature": 0.0, "frequency_penalty": 0.5},
    "greedy + presence": {"temperature": 0.0, "presence_penalty": 0.5},
    "greedy + min_tokens": {"temperature": 0.0, "min_tokens": 1 << 30},
    "greedy + all penalties": {
        "temperature": 0.0,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.5,
        "min_tokens": 1 << 30,
    },
    "greedy + logit_bias (300)": {"temperature": 0.0, "logit_bias": dict.fromkeys(range(300), 1.0)},
    "greedy + bad_words (20)": {"temperature": 0.0, "bad_words_token_ids": tuple((i, i + 1) for i in range(20))},
    "greedy + grammar mask": {"temperature": 0.0},
    "greedy + logprobs=5": {"temperature": 0.0, "logprobs": 5},
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sampling", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--vocab", type=int, nargs="+", default=[49152, 151936])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=0.3, help="time spent on each figure")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    console = Console()
    for vocab_size in options.vocab:
        table = Table(title=f"ms per step, vocabulary {vocab_size}, {device}, {options.threads} threads")
        table.add_column("feature")
        for num_rows in options.rows:
            table.add_column(f"{num_rows} rows", justify="right")
            table.add_column("naive", justify="right")
        columns = [measure_all(num_rows, vocab_size, device, options.seconds) for num_rows in options.rows]
        for feature in FEATURES:
            cells = [f"{value:.2f}" for column in columns for value in column[feature]]
            table.add_row(feature, *cells)
        console.print(table)
    return 0


@torch.inference_mode()  # as the scheduler samples
def measure_all(num_rows: int, vocab_size: int, device: torch.device, seconds: float) -> dict[str, tuple[float, float]]:
    """Milliseconds of each feature, ours and naive."""
    generator = torch.Generator().manual_seed(1)
    original = torch.randn(num_rows, vocab_size, generator=generator).mul_(3.0).to(device)
    outputs = torch.randint(vocab_size, (num_rows, OUTPUT_LENGTH), generator=generator).to(device)
    words = torch.randint(-(2**31), 2**31 - 1, (num_rows, -(-vocab_size // 32)), generator=generator)
    mask = words.to(torch.int32).to(device)
    result = {}
    for feature, fields in FEATURES.items():
        params = SamplingParams(max_tokens=1 << 31, **fields)
        used_mask = mask if "mask" in feature else None
        ours = step_of_ours(original, outputs, params, used_mask)
        naive = step_of_naive(original, outputs, params, used_mask)
        result[feature] = (milliseconds(ours, original, seconds), milliseconds(naive, original, seconds))
    return result


def step_of_ours(
    original: torch.Tensor, outputs: torch.Tensor, params: SamplingParams, mask: torch.Tensor | None
) -> Callable[[torch.Tensor], object]:
    num_rows, vocab_size = original.shape
    state = SamplerState(vocab_size, (0,), original.device)
    for row in range(num_rows):
        state.add(row, params, (), seed=row)
    # The state counts what it draws; here it is told what it "drew", through the orchestrator.
    rows = [SampleRow(row, OUTPUT_LENGTH) for row in range(num_rows)]
    state.orchestrator.count_tokens(torch.arange(num_rows), outputs, torch.full((num_rows,), OUTPUT_LENGTH))
    return lambda logits: state.sample(logits, rows, mask)


def step_of_naive(
    original: torch.Tensor, outputs: torch.Tensor, params: SamplingParams, mask: torch.Tensor | None
) -> Callable[[torch.Tensor], object]:
    """Dense buffers, allocated only for what is asked, as B x V implementations hold them."""
    counts = torch.zeros_like(original).scatter_add_(1, outputs, torch.ones_like(outputs, dtype=torch.float32))
    seen = counts > 0
    repetition = torch.where(seen, params.repetition_penalty, 1.0)
    additive = counts * params.frequency_penalty + seen * params.presence_penalty
    bias = torch.zeros_like(original)
    for token_id, value in params.logit_bias.items():
        bias[:, token_id] = value
    bits = torch.arange(32, device=original.device)

    def step(logits: torch.Tensor) -> torch.Tensor:
        if params.logit_bias:
            logits += bias
        if params.repetition_penalty != 1.0:
            logits = torch.where(logits > 0, logits / repetition, logits * repetition)
        if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
            logits -= additive
        if params.min_tokens:
            logits[:, 0] = float("-inf")
        if mask is not None:
            allowed = ((mask[:, :, None] >> bits) & 1).view(len(logits), -1)[:, : logits.shape[1]].bool()
            logits.masked_fill_(~allowed, float("-inf"))
        if params.logprobs is not None:
            torch.log_softmax(logits, dim=1).topk(params.logprobs)
        if params.temperature == 0.0:
            return logits.argmax(dim=1)
        probabilities = torch.softmax(logits / params.temperature, dim=1)
        if params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0:
            ordered, token_ids = probabilities.sort(dim=1, descending=True)
            if params.top_k > 0:
                ordered[:, params.top_k :] = 0.0
            if params.top_p < 1.0:
                ordered[ordered.cumsum(dim=1) - ordered > params.top_p] = 0.0
            ordered[ordered < ordered[:, :1] * params.min_p] = 0.0
            return token_ids.gather(1, ordered.multinomial(1))[:, 0]
        return probabilities.multinomial(1)[:, 0]

    return step


def milliseconds(step: Callable[[torch.Tensor], object], original: torch.Tensor, seconds: float) -> float:
    """Median over as many steps as fit; the copy of the logits, which a step overwrites, is not counted."""
    on_one_thread = original.device.type == "cpu" and torch.get_num_threads() == 1
    # CPU time of the thread, where there is but one: other programs on the machine do not blur it.
    clock = time.thread_time if on_one_thread else time.perf_counter
    logits = torch.empty_like(original)
    times: list[float] = []
    begin = time.perf_counter()
    while not times or time.perf_counter() - begin < seconds:
        logits.copy_(original)
        if original.device.type == "cuda":
            torch.cuda.synchronize()
        start = clock()
        step(logits)
        if original.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(clock() - start)
    # The first step lays the batch out; a plain decode step does not.
    return 1000 * statistics.median(times[1:] or times)


if __name__ == "__main__":
    raise SystemExit(main())

"""What each sampling parameter does to an answer of the default model: ``python -m bench.sampling_examples``.

Prints the examples of ``docs/sampling.md``: one prompt, one parameter changed at a time. Runs the model and the sampler
in this process, without a server, and all examples in one batch: none changes another.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from model_runner.config import RunnerConfig
from model_runner.forward_row import ForwardRow
from model_runner.runner import ModelRunner
from sampling.params import SamplingParams
from sampling.sampler import SampleRow, SamplerState
from server.models.embedded import fetch_embedded
from server.models.gguf_assets import assets_from_gguf
from server.models.progress import SilentProgress

PROMPT = "The sea at night is"
MAX_TOKENS = 40
GREEDY = {"temperature": 0.0}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sampling_examples", description=__doc__)
    parser.add_argument("--gguf", type=Path, help="another model than the embedded default")
    options = parser.parse_args(arguments)
    path = options.gguf or fetch_embedded(SilentProgress())
    assets = assets_from_gguf(path, name="model", chat_template=None, progress=SilentProgress())
    tokenizer = Tokenizer.from_file(str(assets.tokenizer_json))
    runner = ModelRunner(
        RunnerConfig(model_path=path, dtype="float32", device="cpu", kv_cache_tokens=1024, num_threads=1)
    )

    def id_of(text: str) -> int:
        return int(tokenizer.encode(text).ids[0])

    examples: list[tuple[str, dict[str, Any]]] = [
        ("temperature 0", GREEDY),
        ("temperature 1, seed 1", {"seed": 1}),
        ("temperature 1, seed 2", {"seed": 2}),
        ("temperature 2, seed 1", {"seed": 1, "temperature": 2.0}),
        ("temperature 1, top_k 5, seed 1", {"seed": 1, "top_k": 5}),
        ("temperature 1, top_p 0.5, seed 1", {"seed": 1, "top_p": 0.5}),
        ("temperature 1, min_p 0.2, seed 1", {"seed": 1, "min_p": 0.2}),
        ("temperature 0, repetition_penalty 1.3", {**GREEDY, "repetition_penalty": 1.3}),
        ("temperature 0, frequency_penalty 2", {**GREEDY, "frequency_penalty": 2.0}),
        ("temperature 0, presence_penalty 2", {**GREEDY, "presence_penalty": 2.0}),
        ('temperature 0, logit_bias {" dark": 5}', {**GREEDY, "logit_bias": {id_of(" dark"): 5.0}}),
        ('temperature 0, logit_bias {" a": -100}', {**GREEDY, "logit_bias": {id_of(" a"): -100.0}}),
        ('temperature 0, bad_words [" a"]', {**GREEDY, "bad_words_token_ids": ((id_of(" a"),),)}),
        (
            'temperature 0, min_tokens 20, stop_token_ids ["."]',
            {**GREEDY, "min_tokens": 20, "stop_token_ids": (id_of("."),)},
        ),
        (
            "temperature 0, allowed_token_ids of three words",
            {**GREEDY, "allowed_token_ids": (id_of(" dark"), id_of(" and"), id_of(" deep"))},
        ),
    ]
    prompt = tokenizer.encode(PROMPT).ids
    outputs = generate(runner, prompt, [fields for _, fields in examples], assets.eos_token_ids)
    for (label, _), token_ids in zip(examples, outputs, strict=True):
        print(f"{label}\n    {PROMPT}{tokenizer.decode(token_ids)}".replace("\n\n", "\n"))
    return 0


def generate(
    runner: ModelRunner, prompt: list[int], examples: Sequence[dict[str, Any]], eos_token_ids: tuple[int, ...]
) -> list[list[int]]:
    """Decode one prompt with different parameters, side by side, without a scheduler."""
    state = SamplerState(runner.vocab_size, eos_token_ids, runner.device)
    ends = []
    for key, fields in enumerate(examples):
        params = SamplingParams(max_tokens=MAX_TOKENS, **fields)
        state.add(key, params, prompt, seed=params.seed or 0)
        ends.append({*eos_token_ids, *params.stop_token_ids})
    num_pages = -(-(len(prompt) + MAX_TOKENS) // runner.page_size)
    outputs: list[list[int]] = [[] for _ in examples]
    running = list(range(len(examples)))
    with torch.inference_mode():
        for position in range(MAX_TOKENS):
            rows = []
            for key in running:
                token_ids = outputs[key][-1:] or prompt
                pages = range(key * num_pages, (key + 1) * num_pages)
                rows.append(ForwardRow(token_ids, len(prompt) + position - len(token_ids), list(pages), 1))
            drawn = state.sample(runner.forward(rows), [SampleRow(key, position) for key in running]).token_ids.tolist()
            for key, token_id in zip(running, drawn, strict=True):
                outputs[key].append(token_id)
            running = [key for key in running if outputs[key][-1] not in ends[key]]
            if not running:
                break
    return outputs


if __name__ == "__main__":
    raise SystemExit(main())

"""``scansion bench step``: also ``python -m bench.step``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.serve.arguments import HelpFormatter, count
from bench.step.profile import StepDriver, StepProfileError, StepShape
from bench.step.report import markdown, print_table, to_json
from model_runner.config import RunnerConfig
from model_runner.errors import ModelLoadError
from model_runner.threads import configure_thread_environment
from server.models.errors import ModelResolutionError
from server.models.resolve import resolve


def main(argv: Sequence[str] | None = None) -> int:
    """Profile steps; 0, or 1 when the model cannot be loaded or its steps not be run."""
    options = _parser().parse_args(argv)
    notes = Console(stderr=True, highlight=False)
    try:
        _profile(options, notes)
    except (ModelResolutionError, ModelLoadError, StepProfileError) as error:
        notes.print(str(error), markup=False)
        return 1
    return 0


def _profile(options: argparse.Namespace, notes: Console) -> None:
    # Imported here, after the thread environment of a server; and so that --help need not wait for torch.
    configure_thread_environment(options.num_threads)
    from bench.step.setup import set_up

    assets = resolve(options.model, load_format=options.load_format)
    shape = StepShape(
        row_counts=options.rows,
        context_lengths=options.context,
        steps=options.steps,
        prefill_tokens=options.max_batch_tokens,
        seed=options.seed,
        structured=options.structured,
    )
    config = RunnerConfig(
        model_path=assets.weights_path,
        load_format=options.load_format,
        dtype=options.dtype,
        device=options.device,
        attention_backend=options.attention_backend,
        page_size=options.page_size,
        num_threads=options.num_threads,
        seed=options.seed,
    )
    notes.print(f"loading {assets.name} ...")
    with set_up(config, shape, assets) as setup:
        runner = setup.runner
        driver = StepDriver(setup.scheduler, setup.endpoint, setup.spans, vocab_size=runner.vocab_size)
        try:
            profiles = driver.measure(shape, notes.print)
        finally:
            driver.close()
        about = {
            "model": assets.name,
            "num_parameters": runner.num_parameters,
            "weight_bytes": runner.weight_bytes,
            "dtype": str(runner.dtype).removeprefix("torch."),
            "device": str(runner.device),
            "attention_backend": runner.attention_backend,
            "num_threads": setup.num_threads,
            "structured": options.structured,
            "seed": options.seed,
        }
    caption = (
        f"{about['model']}, {runner.num_parameters / 1e6:.0f}M parameters, {about['dtype']} on {about['device']}, "
        f"{about['attention_backend']} attention, {about['num_threads']} threads"
        f"{', every row constrained' if options.structured else ''}. "
        f"Medians of {options.steps} steps, milliseconds."
    )
    if options.json is not None:
        Path(options.json).write_text(json.dumps(to_json(profiles, about), indent=2) + "\n", "utf-8")
    if options.markdown == "-":
        print(markdown(profiles, caption), end="")
        return
    if options.markdown is not None:
        Path(options.markdown).write_text(markdown(profiles, caption), "utf-8")
    print_table(profiles, caption, Console())


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="scansion bench step",
        description="Milliseconds per part of a step, by row count and context length, on the real model runner.",
        formatter_class=HelpFormatter,
    )
    model = result.add_argument_group("model")
    model.add_argument("--model", help="as for scansion serve; none: the default model")
    model.add_argument(
        "--load-format", choices=["auto", "safetensors", "gguf", "dummy"], default="auto", help="how weights are read"
    )
    model.add_argument(
        "--dtype", choices=["auto", "bfloat16", "float16", "float32"], default="auto", help="compute type"
    )
    model.add_argument("--device", default="auto", help="cpu, cuda or cuda:N")
    model.add_argument("--attention-backend", default="auto", help="attention kernels")
    model.add_argument("--page-size", type=count, default=16, help="tokens in a KV page")
    model.add_argument("--num-threads", type=count, help="CPU compute threads; none: as a server chooses")
    steps = result.add_argument_group("steps")
    steps.add_argument("--rows", type=counts, default=(1, 8, 16, 32), metavar="N,M", help="rows of decode steps")
    steps.add_argument(
        "--context", type=counts, default=(128, 512), metavar="N,M", help="prompt lengths of decode steps"
    )
    steps.add_argument("--steps", type=count, default=12, help="measured steps of each kind")
    steps.add_argument("--max-batch-tokens", type=count, default=512, help="prompt tokens of a prefill step")
    steps.add_argument("--structured", action="store_true", help="constrain every row by a JSON schema")
    steps.add_argument("--seed", type=int, default=0, help="of prompts and random weights")
    output = result.add_argument_group("results")
    output.add_argument("--json", metavar="FILE", help="write every step there")
    output.add_argument("--markdown", metavar="FILE", help="write the table there as Markdown; - for standard output")
    return result


def counts(text: str) -> tuple[int, ...]:
    """Integers of at least one, separated by commas."""
    return tuple(count(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())

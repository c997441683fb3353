from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.step.__main__ import counts, main
from bench.step.profile import StepProfile
from bench.step.report import markdown, parts_of, table_rows

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "torch_dtype": "float32",
}


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of which there is only the configuration."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(TINY))
    return folder


def arguments(folder: Path, *more: str) -> list[str]:
    common = ["--model", str(folder), "--load-format", "dummy", "--dtype", "float32", "--device", "cpu"]
    return [*common, "--num-threads", "1", "--max-batch-tokens", "32", *more]


def test_parts_of_real_steps_add_up_to_the_step(tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    more = ["--rows", "1,4", "--context", "16,40", "--steps", "5", "--json", str(path)]
    assert main(arguments(tiny_folder, *more)) == 0
    written = json.loads(path.read_text())
    shapes = [(p["kind"], p["rows"], p["context_length"], p["tokens"]) for p in written["profiles"]]
    assert shapes == [
        ("prefill", 1, 0, 32),
        ("decode", 4, 16, 4),
        ("decode", 1, 16, 1),
        ("decode", 4, 40, 4),
        ("decode", 1, 40, 1),
    ]
    for profile in written["profiles"]:
        assert len(profile["total_ms"]) == len(profile["parts_ms"]) == 5
        for total, parts in zip(profile["total_ms"], profile["parts_ms"], strict=True):
            assert {"plan", "launch", "batch", "attention", "matmul", "forward", "sample", "apply"} <= parts.keys()
            assert sum(parts.values()) == pytest.approx(total, rel=0.1, abs=0.3)
    assert written["num_threads"] == 1
    assert written["dtype"] == "float32"


def test_table_and_markdown_of_real_steps(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "steps.md"
    more = ["--rows", "2", "--context", "16", "--steps", "2", "--markdown", str(path)]
    assert main(arguments(tiny_folder, *more)) == 0
    assert "| step | rows | context | tokens | ms | min–max | tok/s | receive | plan |" in path.read_text()
    assert "| decode | 2 | 16 | 2 |" in path.read_text()
    assert "decode" in capsys.readouterr().out


def test_context_that_the_model_does_not_have_is_refused(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tiny_folder, "--rows", "1", "--context", "1020", "--steps", "20")) == 1
    assert "context of 1024 tokens" in " ".join(capsys.readouterr().err.split())


def test_model_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path / "nothing")) == 1
    assert "nothing" in capsys.readouterr().err


def test_rows_are_integers_of_at_least_one() -> None:
    assert counts("1,8") == (1, 8)
    with pytest.raises(SystemExit):
        main(["--rows", "1,0"])


def test_report_shows_medians_and_parts_in_the_order_of_a_step() -> None:
    profile = StepProfile(kind="decode", rows=2, context_length=64, tokens=2)
    profile.total_ms = [4.0, 2.0, 3.0]
    profile.parts_ms = [{"sample": 1.0, "plan": 2.0, "new": 0.5}, {"plan": 1.0}, {"plan": 3.0, "sample": 1.0}]
    assert parts_of([profile]) == ["plan", "sample", "new"]
    header, rows = table_rows([profile])
    assert header[-3:] == ["plan", "sample", "new"]
    assert rows == [["decode", "2", "64", "2", "3.00", "2.00–4.00", "667", "2.00", "1.00", "0.00"]]
    assert markdown([profile], "Caption.").startswith("Caption.\n\n| step |")


def test_constrained_rows_spend_time_on_masks(tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    more = ["--rows", "2", "--context", "16", "--steps", "3", "--structured", "--json", str(path)]
    assert main(arguments(tiny_folder, *more)) == 0
    decode = json.loads(path.read_text())["profiles"][1]
    assert all(parts["mask"] > 0 for parts in decode["parts_ms"])

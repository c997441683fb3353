"""Safetensors folders, dummy weights, and what is refused."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model_runner.errors import ModelLoadError
from model_runner.runner import ModelRunner

TOKEN_IDS = random.Random(2).choices(range(101), k=40)


@pytest.fixture
def folder(make_checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    """A checkpoint to spoil."""
    return Path(shutil.copytree(make_checkpoint("llama"), tmp_path / "model"))


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_shards_are_the_same_model_as_one_file(
    make_checkpoint: Callable[..., Path],
    load_runner: Callable[..., ModelRunner],
    run_in_chunks: Callable[..., torch.Tensor],
) -> None:
    for model_type in ("llama", "phi3"):
        sharded = make_checkpoint(model_type, max_shard_size="100KB")
        assert len(list(sharded.glob("model-*.safetensors"))) > 1
        assert torch.equal(
            run_in_chunks(load_runner(sharded), TOKEN_IDS, range(3)),
            run_in_chunks(load_runner(make_checkpoint(model_type)), TOKEN_IDS, range(3)),
        )


def test_a_shard_that_is_not_there_is_named(
    make_checkpoint: Callable[..., Path], load_runner: Callable[..., ModelRunner], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(make_checkpoint("llama", max_shard_size="100KB"), tmp_path / "model"))
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ModelLoadError, match=shard.name):
        load_runner(folder)


@pytest.mark.parametrize("model_type", ["llama", "phi3"])
def test_missing_unexpected_and_misshapen_tensors_are_named(
    model_type: str, make_checkpoint: Callable[..., Path], load_runner: Callable[..., ModelRunner], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(make_checkpoint(model_type), tmp_path / "model"))
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.mlp.down_proj.weight"

    save_file({key: value for key, value in tensors.items() if key != name}, path, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match="down_proj"):
        load_runner(folder)
    save_file({**tensors, "model.layers.9.extra.weight": torch.ones(2)}, path, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match="extra"):
        load_runner(folder)
    save_file({**tensors, name: torch.ones(3, 5)}, path, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match="down_proj"):
        load_runner(folder)


def test_a_cut_file_is_refused(folder: Path, load_runner: Callable[..., ModelRunner]) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
        load_runner(folder)


def test_pickled_weights_are_refused_by_name(folder: Path, load_runner: Callable[..., ModelRunner]) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin"):
        load_runner(folder)


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path, load_runner: Callable[..., ModelRunner]) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        load_runner(tmp_path)
    (tmp_path / "config.json").write_text("{not json")
    with pytest.raises(ModelLoadError, match="JSON"):
        load_runner(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="model_type"):
        load_runner(tmp_path)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("no_such_thing", "no_such_thing"),
        ("t5", "t5"),
        ("mamba", "state-space"),
        ("qwen3_next", "hybrid"),
        ("bloom", "attention interface"),
        ("llama4_text", "chunked_attention"),
    ],
)
def test_architectures_that_cannot_be_served_are_refused_by_name(
    model_type: str, reason: str, tmp_path: Path, load_runner: Callable[..., ModelRunner]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(ModelLoadError, match=model_type) as raised:
        load_runner(tmp_path, load_format="dummy")
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dtype": "int8"}, "int8.*bfloat16"),
        ({"device": "tpu"}, "tpu"),
        ({"context_length": 513}, "513.*512"),
        ({"context_length": 0}, "context length"),
        ({"attention_backend": "no-such"}, "no-such.*torch"),
        ({"kv_cache_tokens": 15}, "one page"),
        ({"kv_cache_tokens": 10**15}, "kv-cache-tokens"),
    ],
)
def test_settings_that_cannot_be_served_are_refused(
    settings: dict[str, Any], reason: str, folder: Path, load_runner: Callable[..., ModelRunner]
) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        load_runner(folder, **settings)


def test_a_foreign_activation_is_refused(folder: Path, load_runner: Callable[..., ModelRunner]) -> None:
    change_config(folder, hidden_act="gelu")
    with pytest.raises(ModelLoadError, match="gelu"):
        load_runner(folder)


def test_a_quantised_checkpoint_is_refused_by_its_method(folder: Path, load_runner: Callable[..., ModelRunner]) -> None:
    change_config(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(ModelLoadError, match="gptq"):
        load_runner(folder)


def test_older_spellings_of_rope_mean_the_same(
    make_checkpoint: Callable[..., Path],
    folder: Path,
    load_runner: Callable[..., ModelRunner],
    run_in_chunks: Callable[..., torch.Tensor],
) -> None:
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    del settings["rope_parameters"]
    settings |= {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}}
    path.write_text(json.dumps(settings))
    assert torch.equal(
        run_in_chunks(load_runner(folder), TOKEN_IDS, range(3)),
        run_in_chunks(load_runner(make_checkpoint("llama", rope_parameters=rope)), TOKEN_IDS, range(3)),
    )


@pytest.mark.parametrize(
    ("model_type", "overrides"),
    [
        ("llama", {}),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}),
        ("phi3", {"sliding_window": None}),
    ],
)
def test_dummy_weights_need_only_the_configuration(
    model_type: str,
    overrides: dict[str, Any],
    make_checkpoint: Callable[..., Path],
    load_runner: Callable[..., ModelRunner],
    run_in_chunks: Callable[..., torch.Tensor],
    tmp_path: Path,
) -> None:
    shutil.copy(make_checkpoint(model_type, **overrides) / "config.json", tmp_path)
    first, second = (
        run_in_chunks(load_runner(tmp_path, load_format="dummy", seed=seed), TOKEN_IDS, range(3)) for seed in (1, 1)
    )
    assert torch.equal(first, second)
    assert first.isfinite().all()
    other = run_in_chunks(load_runner(tmp_path, load_format="dummy", seed=2), TOKEN_IDS, range(3))
    assert not torch.equal(first, other)


def test_progress_rises_to_the_end_of_every_stage(folder: Path) -> None:
    from model_runner.config import RunnerConfig

    seen: list[tuple[str, float]] = []
    ModelRunner(
        RunnerConfig(model_path=folder, device="cpu", dtype="float32", kv_cache_tokens=64),
        progress=lambda stage, fraction: seen.append((stage, fraction)),
    )
    weights = [fraction for stage, fraction in seen if stage == "loading weights"]
    assert weights == sorted(weights)
    assert weights[-1] == 1.0
    assert seen[-1] == ("allocating the KV cache", 1.0)

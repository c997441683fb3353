"""From a path to a loaded model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from transformers import AutoConfig, PretrainedConfig

from model_runner.attention.base import AttentionBackend, AttentionLayer
from model_runner.batch import RaggedBatch
from model_runner.config import RunnerConfig
from model_runner.errors import ModelLoadError
from model_runner.loading.dummy_source import DummySource
from model_runner.loading.facts import state_facts
from model_runner.loading.gguf_names import ROPE_FACTORS
from model_runner.loading.gguf_source import GgufSource
from model_runner.loading.safetensors_source import SafetensorsSource
from model_runner.loading.source import TensorSource
from model_runner.models.decoder import Decoder
from model_runner.models.decoder_weights import DecoderLoader
from model_runner.models.families import FAMILIES, build_decoder_spec
from model_runner.models.rope_scaling import divide_frequencies
from model_runner.models.sharding import Share, check_divisible
from model_runner.ranks import Ranks


class Model(Protocol):
    """What the runner runs."""

    vocab_size: int

    def forward(self, batch: RaggedBatch, attention: AttentionBackend) -> torch.Tensor:
        """Logits [S, V] float32."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    model: Model
    attention_layers: tuple[AttentionLayer, ...]
    context_length: int
    num_parameters: int


def load_model(
    config: RunnerConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    progress: Callable[[str, float], None],
    ranks: Ranks | None = None,
) -> LoadedModel:
    """
    Load the model that a configuration names, or with ``ranks`` this rank's share of it.

    Raises
    ------
    ModelLoadError
        If it cannot be served, or the ranks would not load the same.
    """
    progress("reading the model's configuration", 0.0)
    model_config, source = _open(config)
    context_length = choose_context_length(config, model_config)
    if ranks is not None:
        if model_config.model_type not in FAMILIES:
            from model_runner.models.transformers_parallel import check_plan

            check_plan(model_config, ranks)
        ranks.compare(
            state_facts(config, model_config, source, context_length=context_length, device=device, dtype=dtype)
        )
    if model_config.model_type not in FAMILIES:
        from model_runner.models.transformers_model import load_transformers_model

        model, layers, num_parameters = load_transformers_model(
            config,
            model_config,
            context_length=context_length,
            device=device,
            dtype=dtype,
            progress=progress,
            ranks=ranks,
        )
        return LoadedModel(
            model=model, attention_layers=layers, context_length=context_length, num_parameters=num_parameters
        )
    spec = build_decoder_spec(model_config, context_length=context_length)
    if ranks is not None:
        check_divisible(spec, ranks.size)
    if ROPE_FACTORS in source:
        spec = replace(spec, rope=divide_frequencies(spec.rope, source.read(ROPE_FACTORS, (spec.head_dim // 2,))))
    loader = DecoderLoader(
        spec,
        source,
        dtype=dtype,
        device=device,
        progress=lambda fraction: progress("loading weights", fraction),
        ranks=ranks,
    )
    weights = loader.load()
    if ranks is not None:
        spec = Share(ranks.rank, ranks.size).of_spec(spec)
    return LoadedModel(
        model=Decoder(spec, weights, dtype=dtype, device=device),
        attention_layers=Decoder.attention_layers(spec),
        context_length=context_length,
        num_parameters=loader.num_parameters,
    )


def choose_context_length(config: RunnerConfig, model_config: PretrainedConfig) -> int:
    """
    The context length to serve.

    Raises
    ------
    ModelLoadError
        If more is asked for than the model was made for.
    """
    own = getattr(model_config, "max_position_embeddings", None)
    if config.context_length is None:
        if own is None:
            raise ModelLoadError("the model's configuration states no context length; set one")
        return int(own)
    if config.context_length < 1 or (own is not None and config.context_length > own):
        raise ModelLoadError(f"context length {config.context_length} is not between 1 and the model's {own}")
    return config.context_length


def _open(config: RunnerConfig) -> tuple[PretrainedConfig, TensorSource]:
    """The configuration and the weights, of which nothing is read yet."""
    path = config.model_path
    if config.load_format == "gguf" or (config.load_format == "auto" and path.suffix == ".gguf"):
        if not path.is_file():
            raise ModelLoadError(f"{path} is not a file")
        gguf_source = GgufSource(path)
        return gguf_source.config, gguf_source
    model_config = _read_config(path)
    quantization = getattr(model_config, "quantization_config", None)
    if quantization:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else quantization
        raise ModelLoadError(
            f"{path} is quantised by {method!r}, which is not supported; use a GGUF file or full weights"
        )
    if model_config.model_type not in FAMILIES:
        from model_runner.models.transformers_model import check_support

        check_support(model_config)
    if config.load_format == "dummy":
        return model_config, DummySource(config.seed)
    return model_config, SafetensorsSource(path)


def _read_config(folder: Path) -> PretrainedConfig:
    path = folder / "config.json"
    if not path.is_file():
        raise ModelLoadError(f"{folder} holds no config.json, so it is no model folder")
    try:
        settings = json.loads(path.read_text())
    except ValueError as error:
        raise ModelLoadError(f"{path} is not JSON: {error}") from error
    if not isinstance(settings, dict) or not isinstance(settings.get("model_type"), str):
        raise ModelLoadError(f"{path} names no model_type")
    try:
        return AutoConfig.for_model(**settings)
    except Exception as error:  # configuration classes validate with exceptions of many kinds
        raise ModelLoadError(f"{path} is not a configuration that transformers understands: {error}") from error

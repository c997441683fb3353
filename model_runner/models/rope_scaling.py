"""Inverse frequencies of every rope variant, computed by transformers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from model_runner.errors import ModelLoadError
from model_runner.spec import RopeSpec

SUPPORTED = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def rope_parameters(config: PretrainedConfig) -> dict[str, Any]:
    """The configuration's rope parameters in transformers 5's spelling, with a ``rope_type``."""
    parameters = dict(getattr(config, "rope_parameters", None) or {})
    parameters.setdefault("rope_type", "default")
    return parameters


def build_rope(config: PretrainedConfig, *, head_dim: int, context_length: int) -> RopeSpec:
    """
    Frequencies for one context length.

    A variant whose frequencies change with the length of a text cannot share cached keys between lengths. So
    LongRoPE takes its long factors exactly when the served context is longer than the original one, and dynamic NTK,
    which changes nothing up to ``max_position_embeddings``, is served up to there.

    Raises
    ------
    ModelLoadError
        If the rope type is unknown, or its parameters do not define it.
    """
    parameters = rope_parameters(config)
    rope_type = parameters["rope_type"]
    if rope_type not in SUPPORTED:
        raise ModelLoadError(f"rope type {rope_type!r} is not supported; supported are {', '.join(SUPPORTED)}")
    if rope_type in ("default", "dynamic"):
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        theta = parameters.get("rope_theta", getattr(config, "default_theta", 10000.0))
        return RopeSpec(inverse_frequencies=1.0 / (theta**exponents), scaling=1.0)
    try:
        frequencies, scaling = ROPE_INIT_FUNCTIONS[rope_type](config, torch.device("cpu"), seq_len=context_length)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelLoadError(f"the parameters of rope type {rope_type!r} do not define it: {error!r}") from error
    if frequencies.numel() * 2 != head_dim:
        raise ModelLoadError(f"rope type {rope_type!r} rotates {frequencies.numel() * 2} of {head_dim} head dimensions")
    return RopeSpec(inverse_frequencies=frequencies.float(), scaling=float(scaling))


def divide_frequencies(rope: RopeSpec, factors: torch.Tensor) -> RopeSpec:
    """Each inverse frequency divided by its factor [D / 2], which a GGUF file holds instead of llama3 parameters."""
    return RopeSpec(inverse_frequencies=rope.inverse_frequencies / factors.float(), scaling=rope.scaling)

"""What our own decoder needs to know of a model, free of any one family's spelling."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding of half-split layout."""

    inverse_frequencies: torch.Tensor
    """[D / 2] float32."""
    scaling: float
    """Factor on cosine and sine (YaRN's and LongRoPE's attention factor)."""


@dataclass(frozen=True, kw_only=True)
class MoeSpec:
    num_experts: int
    experts_per_token: int
    intermediate_size: int
    normalize_weights: bool
    """Whether the chosen experts' probabilities are scaled to sum to one."""
    shared_intermediate_size: int | None = None
    """Size of an expert that every token passes through, gated by a sigmoid (Qwen2-MoE)."""


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    sliding_window: int | None = None
    """A query sees the last ``sliding_window`` positions, its own included; ``None``: all."""
    uses_rope: bool = True
    moe: MoeSpec | None = None


@dataclass(frozen=True, kw_only=True)
class DecoderSpec:
    """A decoder of the Llama family."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_epsilon: float
    context_length: int
    is_tied: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    has_qk_norm: bool
    rope: RopeSpec
    layers: tuple[LayerSpec, ...]

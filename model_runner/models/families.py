"""From a Hugging Face configuration to a :class:`DecoderSpec`, family by family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from transformers import PretrainedConfig

from model_runner.errors import ModelLoadError
from model_runner.models.rope_scaling import build_rope
from model_runner.spec import DecoderSpec, LayerSpec, MoeSpec


@dataclass(frozen=True, kw_only=True)
class Family:
    """Where one family departs from plain Llama."""

    layer: Callable[[PretrainedConfig, int], LayerSpec]
    qkv_bias: Callable[[PretrainedConfig], bool] = lambda config: bool(getattr(config, "attention_bias", False))
    output_bias: Callable[[PretrainedConfig], bool] = lambda config: bool(getattr(config, "attention_bias", False))
    has_qk_norm: bool = False


def build_decoder_spec(config: PretrainedConfig, *, context_length: int) -> DecoderSpec:
    """
    Describe a model of one of :data:`FAMILIES`.

    Raises
    ------
    ModelLoadError
        If the configuration asks for something the family's implementation does not do.
    """
    family = FAMILIES[config.model_type]
    activation = getattr(config, "hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelLoadError(f"activation {activation!r} is not supported for {config.model_type}; supported is 'silu'")
    num_heads = config.num_attention_heads
    num_kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
    if num_heads % num_kv_heads:
        raise ModelLoadError(f"{num_heads} attention heads are not a multiple of {num_kv_heads} key-value heads")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    return DecoderSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_epsilon=config.rms_norm_eps,
        context_length=context_length,
        is_tied=bool(config.tie_word_embeddings),
        has_qkv_bias=family.qkv_bias(config),
        has_output_bias=family.output_bias(config),
        has_mlp_bias=bool(getattr(config, "mlp_bias", False)),
        has_qk_norm=family.has_qk_norm,
        rope=build_rope(config, head_dim=head_dim, context_length=context_length),
        layers=tuple(family.layer(config, index) for index in range(config.num_hidden_layers)),
    )


def _plain_layer(config: PretrainedConfig, index: int) -> LayerSpec:
    return LayerSpec()


def _windowed_layer(config: PretrainedConfig, index: int) -> LayerSpec:
    """Every layer has the configuration's window, if it has one."""
    return LayerSpec(sliding_window=getattr(config, "sliding_window", None) or None)


def _window_by_layer_type(config: PretrainedConfig, index: int) -> int | None:
    layer_type = config.layer_types[index]
    if layer_type == "full_attention":
        return None
    if layer_type != "sliding_attention":
        raise ModelLoadError(f"layer {index} has type {layer_type!r}; supported are full_attention, sliding_attention")
    return config.sliding_window or None


def _typed_layer(config: PretrainedConfig, index: int) -> LayerSpec:
    return LayerSpec(sliding_window=_window_by_layer_type(config, index))


def _smollm3_layer(config: PretrainedConfig, index: int) -> LayerSpec:
    window = _window_by_layer_type(config, index) if config.use_sliding_window else None
    return LayerSpec(sliding_window=window, uses_rope=bool(config.no_rope_layers[index]))


def _sparse_spec(config: PretrainedConfig, index: int) -> MoeSpec | None:
    is_dense = index in (config.mlp_only_layers or []) or (index + 1) % config.decoder_sparse_step != 0
    if is_dense or config.num_experts == 0:
        return None
    return MoeSpec(
        num_experts=config.num_experts,
        experts_per_token=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        normalize_weights=bool(config.norm_topk_prob),
        shared_intermediate_size=getattr(config, "shared_expert_intermediate_size", None),
    )


def _qwen3_moe_layer(config: PretrainedConfig, index: int) -> LayerSpec:
    return LayerSpec(
        sliding_window=getattr(config, "sliding_window", None) or None,
        moe=_sparse_spec(config, index),
    )


def _qwen2_moe_layer(config: PretrainedConfig, index: int) -> LayerSpec:
    return LayerSpec(sliding_window=_window_by_layer_type(config, index), moe=_sparse_spec(config, index))


FAMILIES: dict[str, Family] = {
    "llama": Family(layer=_plain_layer),
    "mistral": Family(layer=_windowed_layer, qkv_bias=lambda config: False, output_bias=lambda config: False),
    "smollm3": Family(layer=_smollm3_layer),
    "qwen2": Family(layer=_typed_layer, qkv_bias=lambda config: True, output_bias=lambda config: False),
    "qwen3": Family(layer=_typed_layer, has_qk_norm=True),
    "qwen3_moe": Family(layer=_qwen3_moe_layer, has_qk_norm=True),
    "qwen2_moe": Family(
        layer=_qwen2_moe_layer, qkv_bias=lambda config: bool(config.qkv_bias), output_bias=lambda config: False
    ),
}
"""Families that our own decoder implements, by ``model_type``."""

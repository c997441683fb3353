"""Causal language models that run through transformers' own code, with our paged attention in it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.pytorch_utils import Conv1D

from model_runner.attention.base import AttentionBackend, AttentionLayer
from model_runner.batch import RaggedBatch
from model_runner.config import RunnerConfig
from model_runner.errors import ModelLoadError
from model_runner.layers.linear import build_linear
from model_runner.models.families import FAMILIES
from model_runner.models.rope_scaling import rope_parameters
from model_runner.models.transformers_attention import IMPLEMENTATION, AttentionProbe, PagedPass, current_pass
from model_runner.models.transformers_layers import compute_by, count_own_parameters
from model_runner.models.transformers_parallel import compute_over_ranks, cut_whole_model, distributed_settings
from model_runner.ranks import Ranks

_ATTENTION_TYPES = frozenset(("full_attention", "sliding_attention"))


class TransformersModel:
    """A model of transformers over a paged attention backend."""

    def __init__(
        self, model: Any, layer_of: Mapping[nn.Module, int], vocab_size: int, *, has_logits: bool = True
    ) -> None:
        self.vocab_size = vocab_size
        self._has_logits = has_logits
        self._model = model
        self._layer_of = layer_of
        self._selects_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    def forward(self, batch: RaggedBatch, attention: AttentionBackend) -> torch.Tensor:
        """Logits [S, V] float32 of the batch's ``logits_index``."""
        token = current_pass.set(PagedPass(attention, attention.plan(batch), self._layer_of))
        try:
            # No product is made of no rows: where no logits are wanted, one row's are computed and dropped.
            wanted = batch.logits_index if batch.logits_index.numel() else batch.positions.new_zeros(1)
            selection = {"logits_to_keep": wanted} if self._selects_logits else {}
            output = self._model(
                input_ids=batch.token_ids.unsqueeze(0),
                position_ids=batch.positions.unsqueeze(0),
                use_cache=False,
                **selection,
            )
        finally:
            current_pass.reset(token)
        logits: torch.Tensor = output.logits[0]
        if not self._selects_logits:
            logits = logits.index_select(0, wanted)
        return logits[: batch.logits_index.numel(), : None if self._has_logits else 0].float()


def check_support(model_config: PretrainedConfig) -> None:
    """
    Refuse by name what cannot run, before any weight is read.

    Raises
    ------
    ModelLoadError
        If the architecture is unknown, not a softmax-attention decoder, or without the attention interface.
    """
    name = model_config.model_type
    own = f"our own implementations: {', '.join(sorted(FAMILIES))}"
    model_class: Any = AutoModelForCausalLM._model_mapping.get(type(model_config), None)
    if isinstance(model_class, tuple):
        model_class = model_class[0]
    if model_class is None or model_config.is_encoder_decoder:
        raise ModelLoadError(
            f"architecture {name!r} is no causal language model that transformers knows. Supported are {own}; and "
            "transformers' causal language models with softmax attention and its attention interface"
        )
    label = f"architecture {name!r} ({model_class.__name__})"
    if model_config.get_text_config() is not model_config:
        raise ModelLoadError(f"{label} is multimodal, which is not supported")
    foreign = sorted(set(getattr(model_config, "layer_types", None) or ()) - _ATTENTION_TYPES)
    if foreign or getattr(model_class, "_is_stateful", False):
        what = f"layers of type {', '.join(foreign)}" if foreign else "recurrent state"
        raise ModelLoadError(
            f"{label} has {what}; only full_attention and sliding_attention layers are supported, "
            "no state-space or hybrid models"
        )
    if not getattr(model_class, "_supports_attention_backend", False):
        raise ModelLoadError(f"{label} does not support transformers' attention interface")
    for setting in ("attention_chunk_size", "num_kv_shared_layers", "use_bidirectional_attention", "alibi"):
        if getattr(model_config, setting, None):
            raise ModelLoadError(f"{label} sets {setting}, which is not supported")


def load_transformers_model(
    config: RunnerConfig,
    model_config: PretrainedConfig,
    *,
    context_length: int,
    device: torch.device,
    dtype: torch.dtype,
    progress: Callable[[str, float], None],
    ranks: Ranks | None = None,
) -> tuple[TransformersModel, tuple[AttentionLayer, ...], int]:
    """
    Load a model, or with ``ranks`` this rank's share of it, and learn its attention layers from one short pass.

    Returns
    -------
    tuple
        The model, its attention layers, and its number of parameters.

    Raises
    ------
    ModelLoadError
        If the checkpoint does not fit the model, or its attention cannot be served.
    """
    progress("loading weights", 0.0)
    auto_class: Any = AutoModelForCausalLM
    if device.type == "cpu":
        # The grouped kernels, which are the default, are made for CUDA; this one runs each chosen expert once.
        model_config._experts_implementation = "eager"
    if config.load_format == "dummy":
        torch.manual_seed(config.seed)
        model = auto_class.from_config(model_config, dtype=dtype, attn_implementation=IMPLEMENTATION)
        model = (model if ranks is None else cut_whole_model(model, ranks)).to(device)
    else:
        model, report = auto_class.from_pretrained(
            config.model_path,
            config=model_config,
            dtype=dtype,
            attn_implementation=IMPLEMENTATION,
            local_files_only=True,
            use_safetensors=True,
            # Reported instead of raised, to be refused with the rest.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **({} if ranks is None else {"distributed_config": distributed_settings(ranks)}),
        )
        _refuse_misfits(report)
        model = model.to(device)
    model = model.eval().requires_grad_(False)
    progress("loading weights", 1.0)
    _freeze_long_rope(model, model_config, context_length)
    if ranks is not None:
        compute_over_ranks(model, ranks, is_exact=dtype == torch.float32)
    _compute_products(model, is_exact=dtype == torch.float32)
    probe, vocab_size = _probe(model, device)
    _check_windows(model_config, probe)
    if ranks is not None:
        vocab_size = int(ranks.broadcast_(torch.tensor([vocab_size], device=device)))
    served = TransformersModel(model, probe.layer_of, vocab_size, has_logits=ranks is None or ranks.rank == 0)
    return served, tuple(probe.layers), count_own_parameters(model)


def _refuse_misfits(report: Mapping[str, Any]) -> None:
    for key, what in (
        ("missing_keys", "the checkpoint lacks tensors that the model needs"),
        ("unexpected_keys", "the checkpoint has tensors that this model has no place for"),
        ("mismatched_keys", "tensors of the checkpoint have another shape than the model's"),
    ):
        found = sorted(str(entry) for entry in report.get(key) or ())
        if found:
            raise ModelLoadError(f"{what}: {', '.join(found[:8])}")


def _probe(model: Any, device: torch.device) -> tuple[AttentionProbe, int]:
    probe = AttentionProbe()
    token = current_pass.set(probe)
    try:
        with torch.inference_mode():
            token_ids = torch.zeros(1, 2, dtype=torch.int64, device=device)
            positions = torch.arange(2, device=device).unsqueeze(0)
            output = model(input_ids=token_ids, position_ids=positions, use_cache=False)
    finally:
        current_pass.reset(token)
    num_layers = model.config.num_hidden_layers
    if len(probe.layers) != num_layers:
        raise ModelLoadError(
            f"{type(model).__name__} has {num_layers} layers, of which {len(probe.layers)} use softmax attention; "
            "state-space and hybrid models are not supported"
        )
    return probe, int(output.logits.shape[-1])


def _check_windows(model_config: PretrainedConfig, probe: AttentionProbe) -> None:
    """A window that lives only in the model's mask would be lost, since no mask is made."""
    layer_types = getattr(model_config, "layer_types", None)
    for index, layer in enumerate(probe.layers):
        if layer_types is not None:
            is_windowed = layer_types[index] == "sliding_attention"
        else:
            is_windowed = bool(getattr(model_config, "sliding_window", None)) and getattr(
                model_config, "use_sliding_window", True
            )
        if is_windowed and layer.sliding_window is None:
            raise ModelLoadError(f"layer {index} of {model_config.model_type!r} hides its sliding window in a mask")


def _freeze_long_rope(model: Any, model_config: PretrainedConfig, context_length: int) -> None:
    """
    Take LongRoPE's long factors for every text when the context is longer than the original one.

    transformers chooses by the longest position in the batch, which would rotate one text by its neighbour's length.
    """
    parameters = rope_parameters(model_config)
    if parameters["rope_type"] != "longrope":
        return
    original = parameters["original_max_position_embeddings"]
    if context_length <= original:
        return
    frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](model_config, model.device, seq_len=original + 1)
    rotary = [module for module in model.modules() if hasattr(module, "original_inv_freq")]
    if not rotary:
        raise ModelLoadError(f"{model_config.model_type!r} keeps LongRoPE where its long factors cannot be fixed")
    for module in rotary:
        module.inv_freq.copy_(frequencies)
        module.original_inv_freq.copy_(frequencies)


def _compute_products(model: nn.Module, *, is_exact: bool) -> None:
    """Let our own layers compute every product, but those that something else computes already."""
    for module in model.modules():
        if "forward" in vars(module):
            continue
        if type(module) is nn.Linear:
            weight = module.weight.data
        elif type(module) is Conv1D:
            weight = module.weight.data.t()
        else:
            continue
        bias = None if module.bias is None else module.bias.data
        compute_by(module, build_linear(weight, bias, is_exact=is_exact, is_shared=True))

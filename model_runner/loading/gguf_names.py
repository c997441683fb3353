"""Tensor names and configuration keys of GGUF files, for the architectures we load from them."""

from __future__ import annotations

import re
from collections.abc import Mapping

ROPE_FACTORS = "rope_freqs.weight"
"""What Llama 3's rope scaling divides each frequency by, precomputed by the conversion."""

_LAYER_NAMES: Mapping[str, str] = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_output.bias": "self_attn.o_proj.bias",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "ffn_gate.bias": "mlp.gate_proj.bias",
    "ffn_up.bias": "mlp.up_proj.bias",
    "ffn_down.bias": "mlp.down_proj.bias",
    "ffn_gate_inp.weight": "mlp.gate.weight",
}

_GLOBAL_NAMES: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

EXPERT_NAMES: Mapping[str, str] = {
    "ffn_gate_exps.weight": "gate_proj",
    "ffn_up_exps.weight": "up_proj",
    "ffn_down_exps.weight": "down_proj",
}
"""Tensors that hold one matrix per expert of a layer."""

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")


def split_block(name: str) -> tuple[int, str] | None:
    """``blk.3.attn_q.weight`` as (3, ``attn_q.weight``); ``None`` for a tensor of no layer."""
    match = _BLOCK.fullmatch(name)
    return None if match is None else (int(match[1]), match[2])


def hugging_face_name(name: str) -> str:
    """The name in a Hugging Face checkpoint; a tensor we know nothing of keeps its own, to be refused by it."""
    block = split_block(name)
    if block is None:
        return _GLOBAL_NAMES.get(name, name)
    index, rest = block
    return f"model.layers.{index}.{_LAYER_NAMES[rest]}" if rest in _LAYER_NAMES else name

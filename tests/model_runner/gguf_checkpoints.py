"""Checkpoints as GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.torch import load_file
from transformers import AutoConfig

# llama.cpp's names, from its conversion script: independent of the table under test.
GLOBALS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}


def write_gguf(folder: Path, path: Path, architecture: str, **changes: Any) -> None:
    """Convert a checkpoint as llama.cpp's script does, in float32."""
    config = AutoConfig.from_pretrained(folder)
    rope = config.rope_parameters
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if architecture == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    experts: dict[tuple[str, str], dict[int, np.ndarray]] = {}
    for name, tensor in {**load_file(folder / "model.safetensors"), **changes}.items():
        array = tensor.numpy()
        if name in GLOBALS or not name.startswith("model.layers."):
            writer.add_tensor(GLOBALS.get(name, name), array)
            continue
        _, _, index, rest = name.split(".", 3)
        if ".experts." in rest:
            _, _, expert, projection, _ = rest.split(".")
            experts.setdefault((index, LAYER["mlp." + projection] + "_exps"), {})[int(expert)] = array
            continue
        module, kind = rest.rsplit(".", 1)
        if architecture in ("llama", "smollm3") and module in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = config.num_attention_heads if "q_proj" in module else config.num_key_value_heads
            array = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2)
            array = np.ascontiguousarray(array.reshape(tensor.shape))
        writer.add_tensor(f"blk.{index}.{LAYER[module]}.{kind}", array)
    for (index, module), arrays in experts.items():
        writer.add_tensor(f"blk.{index}.{module}.weight", np.stack([arrays[expert] for expert in sorted(arrays)]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

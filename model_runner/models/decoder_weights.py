"""Reading a decoder's weights, fused and in the compute type, one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from model_runner.layers.linear import Linear, build_linear
from model_runner.layers.moe import GatedMlp, MixtureOfExperts
from model_runner.loading.source import TensorSource, refuse_unread
from model_runner.models.decoder import DecoderLayer, DecoderWeights
from model_runner.models.spec import DecoderSpec, MoeSpec


class DecoderLoader:
    """
    Reads what a :class:`DecoderSpec` asks for from a source with Hugging Face names.

    Every product's weight passes through :meth:`_linear`, the one place that would cut a rank's share.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        source: TensorSource,
        *,
        dtype: torch.dtype,
        device: torch.device,
        progress: Callable[[float], None],
    ) -> None:
        self._spec = spec
        self._source = source
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._is_exact = dtype == torch.float32
        self.num_parameters = 0

    def load(self) -> DecoderWeights:
        """
        All weights.

        Raises
        ------
        ModelLoadError
            If a tensor is missing, misshapen, or there for no reason.
        """
        spec = self._spec
        embedding = self._tensor("model.embed_tokens.weight", (spec.vocab_size, spec.hidden_size))
        layers = []
        for index in range(len(spec.layers)):
            layers.append(self._layer(index))
            self._progress((index + 1) / len(spec.layers))
        if spec.is_tied:
            self._source.skip("lm_head.weight")
            head = build_linear(embedding, None, is_exact=self._is_exact, is_shared=True)
        else:
            head = self._linear([("lm_head", spec.vocab_size)], spec.hidden_size, has_bias=False)
        final_norm = self._tensor("model.norm.weight", (spec.hidden_size,))
        for name in self._source.unread():
            if name.endswith("rotary_emb.inv_freq"):  # written by old versions of transformers, never read
                self._source.skip(name)
        refuse_unread(self._source)
        return DecoderWeights(embedding=embedding, layers=tuple(layers), final_norm=final_norm, head=head)

    def _layer(self, index: int) -> DecoderLayer:
        spec = self._spec
        layer = spec.layers[index]
        prefix = f"model.layers.{index}."
        attention = prefix + "self_attn."
        query_width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        return DecoderLayer(
            input_norm=self._tensor(prefix + "input_layernorm.weight", (spec.hidden_size,)),
            qkv=self._linear(
                [
                    (attention + "q_proj", query_width),
                    (attention + "k_proj", kv_width),
                    (attention + "v_proj", kv_width),
                ],
                spec.hidden_size,
                has_bias=spec.has_qkv_bias,
            ),
            query_norm=self._tensor(attention + "q_norm.weight", (spec.head_dim,)) if spec.has_qk_norm else None,
            key_norm=self._tensor(attention + "k_norm.weight", (spec.head_dim,)) if spec.has_qk_norm else None,
            output=self._linear([(attention + "o_proj", spec.hidden_size)], query_width, has_bias=spec.has_output_bias),
            post_attention_norm=self._tensor(prefix + "post_attention_layernorm.weight", (spec.hidden_size,)),
            mlp=self._mlp(prefix + "mlp.", spec.intermediate_size)
            if layer.moe is None
            else self._experts(prefix + "mlp.", layer.moe),
            uses_rope=layer.uses_rope,
        )

    def _mlp(self, prefix: str, intermediate_size: int) -> GatedMlp:
        hidden_size, has_bias = self._spec.hidden_size, self._spec.has_mlp_bias
        return GatedMlp(
            self._linear(
                [(prefix + "gate_proj", intermediate_size), (prefix + "up_proj", intermediate_size)],
                hidden_size,
                has_bias=has_bias,
            ),
            self._linear([(prefix + "down_proj", hidden_size)], intermediate_size, has_bias=has_bias),
            is_exact=self._is_exact,
        )

    def _experts(self, prefix: str, moe: MoeSpec) -> MixtureOfExperts:
        hidden_size = self._spec.hidden_size
        if prefix + "experts.gate_up_proj" in self._source:
            experts = self._stacked_experts(prefix + "experts.", moe)
        else:
            experts = [
                self._mlp(f"{prefix}experts.{expert}.", moe.intermediate_size) for expert in range(moe.num_experts)
            ]
        shared_expert: GatedMlp | None = None
        shared_gate: Linear | None = None
        if moe.shared_intermediate_size:
            shared_expert = self._mlp(prefix + "shared_expert.", moe.shared_intermediate_size)
            shared_gate = self._linear([(prefix + "shared_expert_gate", 1)], hidden_size, has_bias=False)
        return MixtureOfExperts(
            self._linear([(prefix + "gate", moe.num_experts)], hidden_size, has_bias=False),
            experts,
            experts_per_token=moe.experts_per_token,
            normalize_weights=moe.normalize_weights,
            shared_expert=shared_expert,
            shared_gate=shared_gate,
        )

    def _stacked_experts(self, prefix: str, moe: MoeSpec) -> list[GatedMlp]:
        """Checkpoints that hold all experts of a layer in one tensor."""
        hidden_size = self._spec.hidden_size
        gate_up = self._tensor(prefix + "gate_up_proj", (moe.num_experts, 2 * moe.intermediate_size, hidden_size))
        down = self._tensor(prefix + "down_proj", (moe.num_experts, hidden_size, moe.intermediate_size))
        return [
            GatedMlp(
                build_linear(gate_up[expert].clone(), None, is_exact=self._is_exact),
                build_linear(down[expert].clone(), None, is_exact=self._is_exact),
                is_exact=self._is_exact,
            )
            for expert in range(moe.num_experts)
        ]

    def _linear(self, parts: Sequence[tuple[str, int]], num_inputs: int, *, has_bias: bool) -> Linear:
        """One product for the modules ``parts`` (name, outputs), stacked in this order."""
        num_outputs = sum(outputs for _, outputs in parts)
        weight = torch.empty(num_outputs, num_inputs, dtype=self._dtype, device=self._device)
        bias = torch.empty(num_outputs, dtype=self._dtype, device=self._device) if has_bias else None
        begin = 0
        for name, outputs in parts:
            weight[begin : begin + outputs] = self._source.read(name + ".weight", (outputs, num_inputs))
            if bias is not None:
                bias[begin : begin + outputs] = self._source.read(name + ".bias", (outputs,))
            begin += outputs
        self.num_parameters += weight.numel() + (0 if bias is None else bias.numel())
        return build_linear(weight, bias, is_exact=self._is_exact)

    def _tensor(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        stored = self._source.read(name, shape)
        self.num_parameters += stored.numel()
        # A copy also where the type is the same: the checkpoint's mapping should not stay open for one norm.
        return stored.to(device=self._device, dtype=self._dtype, copy=True)

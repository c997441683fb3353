"""Reading a decoder's weights, fused and in the compute type, one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from model_runner.layers.linear import Linear, build_linear
from model_runner.layers.moe import GatedMlp, MixtureOfExperts
from model_runner.layers.parallel import (
    Embedding,
    SummedOverRanks,
    VocabularyParallelEmbedding,
    VocabularyParallelHead,
)
from model_runner.loading.source import Cut, TensorSource, refuse_unread
from model_runner.models.decoder import DecoderLayer, DecoderWeights, Layer
from model_runner.models.sharding import Share
from model_runner.ranks import Ranks
from model_runner.spec import DecoderSpec, MoeSpec


@dataclass(frozen=True)
class _Part:
    """One module of a fused product."""

    name: str
    num_outputs: int
    kept: slice | None = None
    """The outputs that this rank computes; ``None``: all."""


class DecoderLoader:
    """
    Reads what a :class:`DecoderSpec` asks for from a source with Hugging Face names; of several ranks, one's share.

    Every product's weight passes through :meth:`_linear`, or :meth:`_stacked_experts` where many share a tensor.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        source: TensorSource,
        *,
        dtype: torch.dtype,
        device: torch.device,
        progress: Callable[[float], None],
        ranks: Ranks | None = None,
    ) -> None:
        self._spec = spec
        self._source = source
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._ranks = ranks
        self._share = Share() if ranks is None else Share(ranks.rank, ranks.size)
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
        table = self._vocabulary("model.embed_tokens.weight")
        layers = []
        for index in range(len(spec.layers)):
            layers.append(self._layer(index))
            self._progress((index + 1) / len(spec.layers))
        if spec.is_tied:
            self._source.skip("lm_head.weight")
            head = build_linear(table, None, is_exact=self._is_exact, is_shared=True)
        else:
            head = build_linear(self._vocabulary("lm_head.weight"), None, is_exact=self._is_exact)
        final_norm = self._tensor("model.norm.weight", (spec.hidden_size,))
        for name in self._source.unread():
            if name.endswith("rotary_emb.inv_freq"):  # written by old versions of transformers, never read
                self._source.skip(name)
        refuse_unread(self._source)
        return DecoderWeights(
            embedding=Embedding(table)
            if self._ranks is None
            else VocabularyParallelEmbedding(table, self._share.of_vocabulary(spec.vocab_size).start, self._ranks),
            layers=tuple(layers),
            final_norm=final_norm,
            head=head if self._ranks is None else VocabularyParallelHead(head, spec.vocab_size, self._ranks),
        )

    def _layer(self, index: int) -> DecoderLayer:
        spec = self._spec
        layer = spec.layers[index]
        prefix = f"model.layers.{index}."
        attention = prefix + "self_attn."
        query_width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        own_queries = self._share.of_heads(spec.num_heads, spec.head_dim)
        own_keys = self._share.of_heads(spec.num_kv_heads, spec.head_dim)
        return DecoderLayer(
            input_norm=self._tensor(prefix + "input_layernorm.weight", (spec.hidden_size,)),
            qkv=self._linear(
                [
                    _Part(attention + "q_proj", query_width, own_queries),
                    _Part(attention + "k_proj", kv_width, own_keys),
                    _Part(attention + "v_proj", kv_width, own_keys),
                ],
                spec.hidden_size,
                has_bias=spec.has_qkv_bias,
            ),
            query_norm=self._tensor(attention + "q_norm.weight", (spec.head_dim,)) if spec.has_qk_norm else None,
            key_norm=self._tensor(attention + "k_norm.weight", (spec.head_dim,)) if spec.has_qk_norm else None,
            output=self._summed(
                self._linear(
                    [_Part(attention + "o_proj", spec.hidden_size)],
                    query_width,
                    has_bias=spec.has_output_bias,
                    kept_inputs=own_queries,
                )
            ),
            post_attention_norm=self._tensor(prefix + "post_attention_layernorm.weight", (spec.hidden_size,)),
            mlp=self._summed(
                self._mlp(prefix + "mlp.", spec.intermediate_size)
                if layer.moe is None
                else self._experts(prefix + "mlp.", layer.moe)
            ),
            uses_rope=layer.uses_rope,
        )

    def _mlp(self, prefix: str, intermediate_size: int) -> GatedMlp:
        hidden_size, has_bias = self._spec.hidden_size, self._spec.has_mlp_bias
        own = self._share.of(intermediate_size)
        return GatedMlp(
            self._linear(
                [
                    _Part(prefix + "gate_proj", intermediate_size, own),
                    _Part(prefix + "up_proj", intermediate_size, own),
                ],
                hidden_size,
                has_bias=has_bias,
            ),
            self._linear(
                [_Part(prefix + "down_proj", hidden_size)], intermediate_size, has_bias=has_bias, kept_inputs=own
            ),
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
            shared_gate = self._linear([_Part(prefix + "shared_expert_gate", 1)], hidden_size, has_bias=False)
        return MixtureOfExperts(
            self._linear([_Part(prefix + "gate", moe.num_experts)], hidden_size, has_bias=False),
            experts,
            experts_per_token=moe.experts_per_token,
            normalize_weights=moe.normalize_weights,
            shared_expert=shared_expert,
            shared_gate=shared_gate,
        )

    def _stacked_experts(self, prefix: str, moe: MoeSpec) -> list[GatedMlp]:
        """Checkpoints that hold all experts of a layer in one tensor."""
        hidden_size, own = self._spec.hidden_size, self._share.of(moe.intermediate_size)
        whole = (moe.num_experts, 2 * moe.intermediate_size, hidden_size)
        gate = self._tensor(prefix + "gate_up_proj", whole, Cut(1, own.start, own.stop))
        up_cut = Cut(1, moe.intermediate_size + own.start, moe.intermediate_size + own.stop)
        up = self._tensor(prefix + "gate_up_proj", whole, up_cut)
        down = self._tensor(
            prefix + "down_proj",
            (moe.num_experts, hidden_size, moe.intermediate_size),
            Cut(2, own.start, own.stop),
        )
        return [
            GatedMlp(
                build_linear(torch.cat([gate[expert], up[expert]]), None, is_exact=self._is_exact),
                build_linear(down[expert].clone(), None, is_exact=self._is_exact),
                is_exact=self._is_exact,
            )
            for expert in range(moe.num_experts)
        ]

    def _linear(
        self, parts: Sequence[_Part], num_inputs: int, *, has_bias: bool, kept_inputs: slice | None = None
    ) -> Linear:
        """
        One product for the modules ``parts``, stacked in this order.

        With ``kept_inputs`` it is an addend of every rank, and the bias is in the first rank's.
        """
        inputs = kept_inputs or slice(0, num_inputs)
        columns = None if kept_inputs is None else Cut(1, inputs.start, inputs.stop)
        rows = [part.kept or slice(0, part.num_outputs) for part in parts]
        num_outputs = sum(kept.stop - kept.start for kept in rows)
        has_own_bias = has_bias and (kept_inputs is None or self._share.rank == 0)
        weight = torch.empty(num_outputs, inputs.stop - inputs.start, dtype=self._dtype, device=self._device)
        bias = torch.empty(num_outputs, dtype=self._dtype, device=self._device) if has_own_bias else None
        begin = 0
        for part, kept in zip(parts, rows, strict=True):
            cut = columns if part.kept is None else Cut(0, kept.start, kept.stop)
            end = begin + kept.stop - kept.start
            weight[begin:end] = self._source.read(part.name + ".weight", (part.num_outputs, num_inputs), cut)
            if bias is not None:
                bias[begin:end] = self._source.read(
                    part.name + ".bias", (part.num_outputs,), None if part.kept is None else cut
                )
            elif has_bias:
                self._source.skip(part.name + ".bias")
            begin = end
        self.num_parameters += weight.numel() + (0 if bias is None else bias.numel())
        return build_linear(weight, bias, is_exact=self._is_exact)

    def _summed(self, addend: Layer) -> Layer:
        return addend if self._ranks is None else SummedOverRanks(addend, self._ranks, is_exact=self._is_exact)

    def _vocabulary(self, name: str) -> torch.Tensor:
        """This rank's rows of a matrix with one row for each token id, padded with rows of zeros."""
        spec, own = self._spec, self._share.of_vocabulary(self._spec.vocab_size)
        width = self._share.padded_width(spec.vocab_size)
        table = torch.zeros(width, spec.hidden_size, dtype=self._dtype, device=self._device)
        table[: own.stop - own.start] = self._source.read(
            name, (spec.vocab_size, spec.hidden_size), Cut(0, own.start, own.stop)
        )
        self.num_parameters += (own.stop - own.start) * spec.hidden_size
        return table

    def _tensor(self, name: str, shape: Sequence[int], cut: Cut | None = None) -> torch.Tensor:
        stored = self._source.read(name, shape, cut)
        self.num_parameters += stored.numel()
        # A copy also where the type is the same: the checkpoint's mapping should not stay open for one norm.
        return stored.to(device=self._device, dtype=self._dtype, copy=True)

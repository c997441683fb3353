"""Our fused implementation of the Llama family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from model_runner.attention.base import AttentionBackend, AttentionLayer
from model_runner.batch import RaggedBatch
from model_runner.layers.linear import Linear
from model_runner.layers.rotary import RotaryTable, rotate
from model_runner.spec import DecoderSpec

Layer = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class DecoderLayer:
    """Weights of one layer."""

    input_norm: torch.Tensor
    qkv: Linear
    """Queries, keys and values of all heads in one product."""
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Layer
    post_attention_norm: torch.Tensor
    mlp: Layer
    uses_rope: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class DecoderWeights:
    embedding: Layer
    """[T] token ids to [T, hidden]."""
    layers: tuple[DecoderLayer, ...]
    final_norm: torch.Tensor
    head: Layer
    """[S, hidden] to [S, V]."""


class Decoder:
    """A decoder of the Llama family over a paged attention backend."""

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.vocab_size = spec.vocab_size
        self._spec = spec
        self._weights = weights
        self._rotary = RotaryTable(spec.rope, num_positions=spec.context_length, dtype=dtype, device=device)

    @staticmethod
    def attention_layers(spec: DecoderSpec) -> tuple[AttentionLayer, ...]:
        """What the attention backend is made for."""
        return tuple(
            AttentionLayer(
                num_heads=spec.num_heads,
                num_kv_heads=spec.num_kv_heads,
                head_dim=spec.head_dim,
                value_dim=spec.head_dim,
                scale=spec.head_dim**-0.5,
                sliding_window=layer.sliding_window,
            )
            for layer in spec.layers
        )

    def forward(self, batch: RaggedBatch, attention: AttentionBackend) -> torch.Tensor:
        """Logits [S, V] float32 of the batch's ``logits_index``."""
        spec = self._spec
        plan = attention.plan(batch)
        cosines, signed_sines = self._rotary.at(batch.positions)
        hidden = self._weights.embedding(batch.token_ids)
        for index, layer in enumerate(self._weights.layers):
            normed = self._norm(hidden, layer.input_norm)
            qkv = layer.qkv(normed).view(-1, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
            rotated, value = qkv[:, : spec.num_heads + spec.num_kv_heads], qkv[:, spec.num_heads + spec.num_kv_heads :]
            if layer.query_norm is not None and layer.key_norm is not None:
                rotated = torch.cat(
                    [
                        self._norm(rotated[:, : spec.num_heads], layer.query_norm),
                        self._norm(rotated[:, spec.num_heads :], layer.key_norm),
                    ],
                    dim=1,
                )
            if layer.uses_rope:
                rotated = rotate(rotated, cosines, signed_sines)
            query, key = rotated[:, : spec.num_heads], rotated[:, spec.num_heads :]
            attended = attention.attend(index, plan, query, key, value)
            hidden += layer.output(attended)
            hidden += layer.mlp(self._norm(hidden, layer.post_attention_norm))
        if batch.logits_index.numel() == 0:
            return hidden.new_empty((0, self.vocab_size), dtype=torch.float32)
        wanted = self._norm(hidden.index_select(0, batch.logits_index), self._weights.final_norm)
        return self._weights.head(wanted).float()

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self._spec.norm_epsilon)

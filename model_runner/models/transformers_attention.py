"""Our paged attention as an attention implementation of transformers.

The attention interface has no argument that every model hands through to it, so the pass that is running is found in
a context variable: :class:`PagedPass` while serving, :class:`AttentionProbe` once while loading.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import nn
from transformers import AttentionInterface

from model_runner.attention.base import AttentionBackend, AttentionLayer
from model_runner.errors import ModelLoadError

IMPLEMENTATION = "scansion_paged"

_HARMLESS = frozenset(
    (
        "dropout",
        "position_ids",
        "position_embeddings",
        "cache_position",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "logits_to_keep",
    )
)
"""Keywords that do not change what inference computes."""


class Pass(Protocol):
    """What happens when a layer of the running pass attends."""

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        keywords: Mapping[str, Any],
    ) -> torch.Tensor:
        """query [T, H, D], key [T, Hkv, D], value [T, Hkv, Dv], giving [T, H * Dv]."""


current_pass: ContextVar[Pass] = ContextVar("current_pass")


class PagedPass:
    """One forward pass over the pages."""

    def __init__(self, attention: AttentionBackend, plan: Any, layer_of: Mapping[nn.Module, int]) -> None:
        self._attention = attention
        self._plan = plan
        self._layer_of = layer_of

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        keywords: Mapping[str, Any],
    ) -> torch.Tensor:
        return self._attention.attend(self._layer_of[module], self._plan, query, key, value)


class AttentionProbe:
    """Learns each layer's shape and keywords, and refuses what no backend could serve."""

    def __init__(self) -> None:
        self.layer_of: dict[nn.Module, int] = {}
        self.layers: list[AttentionLayer] = []

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        keywords: Mapping[str, Any],
    ) -> torch.Tensor:
        remaining = {name: given for name, given in keywords.items() if given is not None and name not in _HARMLESS}
        if remaining.pop("is_causal", getattr(module, "is_causal", True)) is False:
            raise ModelLoadError(f"{type(module).__name__} is not causal")
        if remaining.pop("attention_mask", None) is not None:
            raise ModelLoadError(f"{type(module).__name__} attends through a mask of its own")
        if module in self.layer_of:
            raise ModelLoadError(f"{type(module).__name__} attends more than once in a pass")
        scale = remaining.pop("scaling", None)
        layer = AttentionLayer(
            num_heads=query.shape[1],
            num_kv_heads=key.shape[1],
            head_dim=query.shape[2],
            value_dim=value.shape[2],
            scale=float(query.shape[2] ** -0.5 if scale is None else scale),
            sliding_window=remaining.pop("sliding_window", None),
            softcap=remaining.pop("softcap", None),
            sinks=remaining.pop("s_aux", None),
        )
        if remaining:
            raise ModelLoadError(
                f"{type(module).__name__} passes attention keywords that are not served: {', '.join(sorted(remaining))}"
            )
        self.layer_of[module] = len(self.layers)
        self.layers.append(layer)
        return query.new_zeros(query.shape[0], layer.num_heads * layer.value_dim)


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    """The attention interface: query [1, H, T, D] and so on, giving [1, T, H, Dv]."""
    keywords["attention_mask"] = attention_mask
    out = current_pass.get().attend(
        module, query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), keywords
    )
    return out.view(1, query.shape[2], query.shape[1], -1), None


AttentionInterface.register(IMPLEMENTATION, _attend)

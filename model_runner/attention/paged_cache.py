"""KV tensors of the torch backends."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from model_runner.attention.base import AttentionLayer


class PagedCache:
    """
    One tensor per layer, [P + 1, page_size, Hkv * (D + Dv)]: a token's keys of all heads, then its values.

    Page ``num_pages`` belongs to nobody and stays zero: where tables are padded they point at it. A page that is begun
    anew is zeroed first, so that masked slots hold finite numbers whatever ran there before (0 * NaN is NaN).
    """

    def __init__(
        self,
        layers: Sequence[AttentionLayer],
        *,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.zero_page = num_pages
        # Not filled: on a CPU the system hands out memory when it is first written, which takes seconds for all of it.
        self.pages = [
            torch.empty(num_pages + 1, page_size, token_width(layer), dtype=dtype, device=device) for layer in layers
        ]
        for pages in self.pages:
            pages[self.zero_page].zero_()
        self._keys, self._values = [], []
        for layer, pages in zip(layers, self.pages, strict=True):
            slots = pages.view(-1, token_width(layer))
            key_width = layer.num_kv_heads * layer.head_dim
            self._keys.append(torch.unflatten(slots[:, :key_width], 1, (layer.num_kv_heads, layer.head_dim)))
            self._values.append(torch.unflatten(slots[:, key_width:], 1, (layer.num_kv_heads, layer.value_dim)))

    def write(
        self,
        layer_index: int,
        slots: torch.Tensor,
        begun_pages: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> None:
        """Store key [T, Hkv, D] and value [T, Hkv, Dv] at slots [T]; ``begun_pages`` [N] are zeroed before."""
        if begun_pages.numel():
            self.pages[layer_index].index_fill_(0, begun_pages, 0.0)
        self._keys[layer_index].index_copy_(0, slots, key)
        self._values[layer_index].index_copy_(0, slots, value)

    def gather(self, layer_index: int, layer: AttentionLayer, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [B, L, Hkv, D] and values [B, L, Hkv, Dv] of page tables [B, N], as views of one copy."""
        num_rows, num_columns = pages.shape
        cache = self.pages[layer_index]
        held = cache.index_select(0, pages.reshape(-1)).view(num_rows, num_columns * cache.shape[1], -1)
        key_width = layer.num_kv_heads * layer.head_dim
        keys = torch.unflatten(held[..., :key_width], 2, (layer.num_kv_heads, layer.head_dim))
        values = torch.unflatten(held[..., key_width:], 2, (layer.num_kv_heads, layer.value_dim))
        return keys, values


def token_width(layer: AttentionLayer) -> int:
    """Elements that one token takes in a layer."""
    return layer.num_kv_heads * (layer.head_dim + layer.value_dim)

"""Matrix products with a weight that is loaded once.

At bfloat16 and float16 the kernel may depend on the number of rows: a CPU without instructions for such products
computes those of many rows in float32. At float32 every product is computed in tiles of
exactly :data:`ROW_TILE` rows, the last one filled up with zeros: the kernel sees one shape only, and no element of a
product's row depends on another row or on the row's place in the tile, so that a row's bits never depend on the batch.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

ROW_TILE = 16
NATIVE_ROWS = 3
"""Up to so many rows torch's own kernel is the faster one on a CPU without instructions for the type. It reads the
weight once for each row; a conversion reads it once and costs about as much as three rows."""
BLOCK_NUMEL = 1 << 20
"""Elements of a weight that are converted at a time: they stay in the cache until they are multiplied."""


class Linear(Protocol):
    """``x @ weight.T + bias`` for x [T, K], giving [T, N]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class DenseLinear:
    """One product of all rows, with the weight as it is stored [N, K]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._weight, self._bias)


class PackedLinear:
    """One product of all rows by oneDNN; the weight may be in oneDNN's own layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias
        self._product = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self._product(x, self._weight, self._bias, "none", [], "")
        return product


class ConvertedLinear:
    """Products of a bfloat16 or float16 weight, computed in float32 block by block when there are enough rows."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias
        self._block_rows = max(1, BLOCK_NUMEL // weight.shape[1])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] <= NATIVE_ROWS:
            return functional.linear(x, self._weight, self._bias)
        wide = x.float()
        num_outputs, num_inputs = self._weight.shape
        product = wide.new_empty((x.shape[0], num_outputs))
        block = wide.new_empty((min(self._block_rows, num_outputs), num_inputs))
        for start in range(0, num_outputs, self._block_rows):
            part = self._weight[start : start + self._block_rows]
            converted = block[: part.shape[0]].copy_(part)
            torch.mm(wide, converted.t(), out=product[:, start : start + part.shape[0]])
        if self._bias is not None:
            product += self._bias
        return product.to(x.dtype)


class TiledLinear:
    """Products of :data:`ROW_TILE` rows each."""

    def __init__(self, product: Linear) -> None:
        self._product = product

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        num_rows = x.shape[0]
        if not num_rows:  # a step of which nobody wants logits
            return self._product(x)
        num_padding = -num_rows % ROW_TILE
        if num_padding:
            x = functional.pad(x, (0, 0, 0, num_padding))
        if x.shape[0] == ROW_TILE:
            return self._product(x)[:num_rows]
        # An odd number of columns would leave a tile's start unaligned, and a kernel may treat that differently.
        tiles = [self._product(x[start : start + ROW_TILE].contiguous()) for start in range(0, x.shape[0], ROW_TILE)]
        return torch.cat(tiles)[:num_rows]


def build_linear(weight: torch.Tensor, bias: torch.Tensor | None, *, is_exact: bool, is_shared: bool = False) -> Linear:
    """
    The fastest product for a weight on its device.

    Parameters
    ----------
    weight : torch.Tensor
        [N, K]. The product may keep a copy in another layout, so nobody else should hold it, unless ``is_shared``.
    bias : torch.Tensor or None
        [N].
    is_exact : bool
        Whether a row's bits may not depend on the other rows.
    is_shared : bool
        Whether the weight serves elsewhere too (tied embeddings), so that it must keep its layout; packing would
        hold it twice.
    """
    product: Linear
    if weight.device.type == "cpu" and _onednn_computes(weight.dtype):
        if not is_shared:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROW_TILE)
        product = PackedLinear(weight, bias)
    elif weight.device.type == "cpu" and weight.dtype in (torch.bfloat16, torch.float16):
        product = ConvertedLinear(weight, bias)
    else:
        product = DenseLinear(weight, bias)
    return TiledLinear(product) if is_exact else product


def _onednn_computes(dtype: torch.dtype) -> bool:
    if not torch._C._has_mkldnn:
        return False
    if dtype == torch.bfloat16:
        # On x86 oneDNN takes bfloat16 from AVX-512 on; without AVX512-BF16 or AMX its products are emulated and slow.
        has = torch.cpu.get_capabilities()
        is_emulated = has["architecture"] == "x86_64" and not (has["avx512_bf16"] or has["amx_bf16"])
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and not is_emulated
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32

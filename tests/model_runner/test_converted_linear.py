"""Products of two-byte weights on a CPU that has no instructions for them."""

from __future__ import annotations

import pytest
import torch

from model_runner.device import choose_dtype
from model_runner.layers import linear
from model_runner.layers.linear import ConvertedLinear, build_linear


@pytest.fixture
def cpu_without_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU with AVX-512 and no more: oneDNN takes bfloat16 there, and emulates it."""
    capabilities = {"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)


@pytest.mark.usefixtures("cpu_without_bfloat16")
def test_auto_is_bfloat16_and_converted_without_instructions_for_it() -> None:
    dtype = choose_dtype("auto", torch.device("cpu"))
    assert dtype == torch.bfloat16
    assert isinstance(build_linear(torch.ones(24, 8, dtype=dtype), None, is_exact=False), ConvertedLinear)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_every_number_of_rows_gives_the_rounded_float32_product(
    dtype: torch.dtype, has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "BLOCK_NUMEL", 5 * 16)  # 13 outputs are two whole blocks and a part of one
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(13, 16, generator=generator).to(dtype)
    bias = torch.randn(13, generator=generator).to(dtype) if has_bias else None
    product = ConvertedLinear(weight, bias)
    for num_rows in (0, 1, linear.NATIVE_ROWS, linear.NATIVE_ROWS + 1, 40):
        x = torch.randn(num_rows, 16, generator=generator).to(dtype)
        expected = x.double() @ weight.double().t() + (0.0 if bias is None else bias.double())
        actual = product(x)
        assert actual.dtype == dtype
        torch.testing.assert_close(actual.double(), expected, atol=2e-2, rtol=torch.finfo(dtype).eps)

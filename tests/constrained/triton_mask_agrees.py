"""Run with TRITON_INTERPRET=1: the Triton mask kernel against the native one, on CPU tensors."""

from __future__ import annotations

import torch

from constrained.mask_kernels import apply_vocab_mask, apply_vocab_mask_triton


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    for rows, vocab_size, words in ((1, 31, 1), (3, 1024, 32), (5, 1100, 35), (2, 2050, 64), (4, 70, 2)):
        mask = torch.randint(-(2**31), 2**31, (rows, words), dtype=torch.int32, generator=generator)
        logits = torch.randn(rows, vocab_size, generator=generator)
        native, triton = logits.clone(), logits.clone()
        apply_vocab_mask(native, mask)
        apply_vocab_mask_triton(triton, mask, None)
        assert torch.equal(native, triton), (rows, vocab_size, words)
        spread = torch.randn(2 * rows, vocab_size, generator=generator)
        indices = torch.arange(rows) * 2 + 1
        native, triton = spread.clone(), spread.clone()
        apply_vocab_mask(native, mask, indices)
        apply_vocab_mask_triton(triton, mask, indices)
        assert torch.equal(native, triton), (rows, vocab_size, words, "indices")
        assert torch.equal(native[::2], spread[::2])
    print("agree")


if __name__ == "__main__":
    main()

"""What a backend compiles for: a vocabulary, the model's width and the server's options."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from constrained.config import GrammarConfig
from constrained.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class GrammarEnvironment:
    """The same in the scheduler and in every compile worker.

    Raises
    ------
    ValueError
        Where no end token is given or one lies outside the vocabulary.
    """

    vocabulary: Vocabulary
    vocab_size: int
    """Width of masks in tokens: the larger of the model's logits and the tokenizer."""
    eos_token_ids: tuple[int, ...]
    config: GrammarConfig = field(default_factory=GrammarConfig)
    may_name_special_tokens: bool = False
    """Whether a grammar may have special tokens, by id, at places of their own; text never matches them either way."""

    def __post_init__(self) -> None:
        if self.vocab_size < len(self.vocabulary):
            raise ValueError(f"vocab_size {self.vocab_size} is smaller than the tokenizer's {len(self.vocabulary)}")
        if not self.eos_token_ids or not all(0 <= i < self.vocab_size for i in self.eos_token_ids):
            raise ValueError(f"constrained answers need end tokens inside the vocabulary, not {self.eos_token_ids}")

    @property
    def num_mask_words(self) -> int:
        """int32 words of one mask row: ``ceil(vocab_size / 32)``."""
        return (self.vocab_size + 31) // 32

    @cached_property
    def matchable_bytes(self) -> tuple[bytes, ...]:
        """Bytes by id over the whole width; ``b""`` for what no grammar may ever produce: special, unused, padding.

        Special tokens that a grammar may name begin with a byte that UTF-8 has no use for: no text matches them.
        """
        visible = [b"" if i in self.eos_token_ids else b for i, b in enumerate(self.vocabulary.token_bytes)]
        for i in self.vocabulary.special_ids:
            visible[i] = b"\xff" + visible[i] if self.may_name_special_tokens and visible[i] else b""
        return tuple(visible) + (b"",) * (self.vocab_size - len(visible))

    @cached_property
    def naming_special_tokens(self) -> GrammarEnvironment:
        """The same for a grammar that names special tokens."""
        return replace(self, may_name_special_tokens=True)

    @cached_property
    def continuation_byte_ids(self) -> tuple[int, ...]:
        """Ids of the tokens that are one UTF-8 continuation byte, 0x80 to 0xBF; empty where one of these is missing."""
        ids = {token: i for i, token in enumerate(self.matchable_bytes) if len(token) == 1}
        found = [ids.get(bytes([byte])) for byte in range(0x80, 0xC0)]
        return tuple(i for i in found if i is not None) if None not in found else ()

    @cached_property
    def unmatchable_ids(self) -> frozenset[int]:
        """Ids whose ``matchable_bytes`` are empty."""
        return frozenset(i for i, b in enumerate(self.matchable_bytes) if not b)

    @cached_property
    def matchable_words(self) -> npt.NDArray[np.int32]:
        """One mask row with a bit for every matchable id, zero beyond the vocabulary. [ceil(V / 32)] int32"""
        return ids_to_words([i for i, b in enumerate(self.matchable_bytes) if b], self.num_mask_words)

    @cached_property
    def full_words(self) -> npt.NDArray[np.int32]:
        """One mask row that allows every id, zero beyond the vocabulary. [ceil(V / 32)] int32"""
        return ids_to_words(range(self.vocab_size), self.num_mask_words)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything but the server's options that a compiled grammar depends on."""
        digest = hashlib.sha256()
        for token in self.matchable_bytes:
            digest.update(len(token).to_bytes(4, "little"))
            digest.update(token)
        return digest.hexdigest()


def ids_to_words(token_ids: list[int] | range, num_words: int) -> npt.NDArray[np.int32]:
    """A mask row with the bits of ``token_ids``. [num_words] int32, read-only"""
    bits = np.zeros(num_words * 32, dtype=np.bool_)
    if isinstance(token_ids, range):
        bits[token_ids.start : token_ids.stop : token_ids.step] = True
    else:
        bits[np.array(token_ids, dtype=np.int64)] = True
    words = np.packbits(bits, bitorder="little").view(np.int32)
    words.flags.writeable = False
    return words

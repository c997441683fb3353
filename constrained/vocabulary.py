"""The tokenizer's vocabulary as bytes. Free of torch: the HTTP process detokenises with it, the scheduler matches
stop strings and grammars with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any


class UnsupportedTokenizerError(ValueError):
    """The tokenizer's decoder cannot be described as one byte string a token."""


@dataclass(frozen=True)
class Vocabulary:
    """Bytes of every token id.

    ``token_bytes[i]`` is what token ``i`` adds to the text; a special token's bytes are its literal spelling
    (``b"<|im_end|>"``), and ids in ``special_ids`` add nothing to a text that skips special tokens. Ids the tokenizer
    does not use are ``b""`` and in ``special_ids``.
    """

    token_bytes: tuple[bytes, ...]
    special_ids: frozenset[int]

    def __len__(self) -> int:
        return len(self.token_bytes)

    @cached_property
    def visible_bytes(self) -> tuple[bytes, ...]:
        """``token_bytes`` with ``b""`` for special tokens: what each token adds to a text that skips them."""
        return tuple(b"" if i in self.special_ids else b for i, b in enumerate(self.token_bytes))

    @classmethod
    def from_tokenizer_json(cls, path: Path) -> Vocabulary:
        """Read a Hugging Face ``tokenizer.json``.

        Byte-level BPE and SentencePiece-style byte fallback are understood; anything else raises
        :class:`UnsupportedTokenizerError`.
        """
        data = json.loads(path.read_text(encoding="utf-8"))
        return _from_tokenizer_data(data)


def _from_tokenizer_data(data: dict[str, Any]) -> Vocabulary:
    decoders = _flatten(data.get("decoder"))
    kinds = {d["type"] for d in decoders}
    if "ByteLevel" in kinds:
        to_bytes = _byte_level
    elif "ByteFallback" in kinds or "Metaspace" in kinds:
        replacements = [(d["pattern"]["String"], d["content"]) for d in decoders if d["type"] == "Replace"]
        replacements += [(d.get("replacement", "▁"), " ") for d in decoders if d["type"] == "Metaspace"]

        def to_bytes(token: str) -> bytes:
            return _byte_fallback(token, replacements)
    else:
        raise UnsupportedTokenizerError(
            f"the tokenizer decodes with {sorted(kinds) or 'nothing'}; only byte-level BPE and byte-fallback "
            "tokenizers have exact token bytes"
        )
    vocab = data["model"]["vocab"]
    pieces = vocab.items() if isinstance(vocab, dict) else ((piece, i) for i, (piece, _) in enumerate(vocab))
    ids: dict[int, bytes] = {i: to_bytes(piece) for piece, i in pieces}
    special = set()
    for added in data.get("added_tokens", []):
        ids[added["id"]] = added["content"].encode()
        if added["special"]:
            special.add(added["id"])
    size = max(ids) + 1
    special |= set(range(size)) - ids.keys()
    return Vocabulary(tuple(ids.get(i, b"") for i in range(size)), frozenset(special))


def _flatten(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [inner for d in decoder["decoders"] for inner in _flatten(d)]
    return [decoder]


@lru_cache(maxsize=1)
def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes (``bytes_to_unicode`` in the GPT-2 release)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(b): b for b in printable}
    others = [b for b in range(256) if b not in set(printable)]
    return alphabet | {chr(256 + i): b for i, b in enumerate(others)}


def _byte_level(token: str) -> bytes:
    alphabet = _byte_level_alphabet()
    return bytes(alphabet[c] for c in token) if all(c in alphabet for c in token) else token.encode()


def _byte_fallback(token: str, replacements: list[tuple[str, str]]) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    for old, new in replacements:
        token = token.replace(old, new)
    return token.encode()

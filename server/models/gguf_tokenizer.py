"""Turn the tokenizer inside a GGUF file into a Hugging Face ``tokenizer.json``.

The file holds the vocabulary, the merges or scores, and, by name, how text is split before merging
(``tokenizer.ggml.pre``). The splits below are those llama.cpp keeps under these names (``src/llama-vocab.cpp``), in the
form the models' own ``tokenizer.json`` give them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from server.models.errors import ModelResolutionError
from server.models.gguf_metadata import gguf_value

_CONTROL, _USER_DEFINED = 3, 4  # llama.cpp's token types


@dataclass(frozen=True)
class _Split:
    """How a byte-level BPE splits text, and llama.cpp's defaults that come with the name."""

    pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer]
    ignore_merges: bool = False
    add_bos: bool = False
    unicode_nfc: bool = False


def _regex(pattern: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    return lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _gpt2_single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


_LLAMA3 = _Split(
    _regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    ignore_merges=True,
    add_bos=True,
)
_QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _Split(_regex(_QWEN2_PATTERN), unicode_nfc=True)
_DEEPSEEK_QWEN = _Split(_regex(_QWEN2_PATTERN))
_TEKKEN = _Split(
    _regex(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    ignore_merges=True,
    add_bos=True,
)
_GPT4O = _Split(
    _regex(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
)
_SPLITS: dict[str, _Split] = {
    **dict.fromkeys(("gpt-2", "phi-2"), _Split(_gpt2)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
                    _Split(_gpt2_single_digits)),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"), _LLAMA3),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _DEEPSEEK_QWEN,
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
}  # fmt: skip


@dataclass(frozen=True)
class GgufTokenizer:
    """A converted tokenizer and whether a plain prompt begins with its bos token."""

    tokenizer: Tokenizer
    add_bos: bool


def tokenizer_from_gguf(metadata: dict[str, Any]) -> GgufTokenizer:
    """Convert the tokenizer a GGUF file's metadata describes.

    Raises
    ------
    ModelResolutionError
        There is none, or it is of a kind or splits text in a way that is not known here: a guess would give other
        tokens than the model was trained on.
    """
    kind = gguf_value(metadata, "tokenizer.ggml.model", str, None)
    tokens = gguf_value(metadata, "tokenizer.ggml.tokens", list, None)
    if kind is None or not tokens:
        raise ModelResolutionError(
            "the GGUF file holds no tokenizer (no tokenizer.ggml.model and tokenizer.ggml.tokens)"
        )
    if kind == "gpt2":
        split = _split(metadata)
        tokenizer, add_bos = _byte_level(metadata, tokens, split), split.add_bos
    elif kind == "llama":
        tokenizer, add_bos = _sentencepiece(metadata, tokens), True
    else:
        raise ModelResolutionError(
            f"the GGUF file's tokenizer is of the kind {kind!r}; only 'gpt2' (byte-level BPE) and 'llama' "
            "(SentencePiece BPE) are served. Use the model's safetensors folder, which has a tokenizer.json."
        )
    _add_special_tokens(tokenizer, metadata, tokens, byte_level=kind == "gpt2")
    add_bos = gguf_value(metadata, "tokenizer.ggml.add_bos_token", bool, add_bos)
    bos_id = gguf_value(metadata, "tokenizer.ggml.bos_token_id", int, 1 if kind == "llama" else None)
    add_bos = add_bos and bos_id is not None
    if add_bos:
        bos = tokens[bos_id]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, bos_id)]
        )
    return GgufTokenizer(tokenizer, add_bos)


def _split(metadata: dict[str, Any]) -> _Split:
    name = gguf_value(metadata, "tokenizer.ggml.pre", str, None)
    if name in _SPLITS:
        return _SPLITS[name]
    said = "does not say how its tokenizer splits text (tokenizer.ggml.pre)" if name is None else (
        f"names the text split {name!r} (tokenizer.ggml.pre), which is not known here"
    )  # fmt: skip
    raise ModelResolutionError(
        f"the GGUF file {said}; known are {', '.join(sorted(_SPLITS))}. "
        "Use the model's safetensors folder, which has a tokenizer.json."
    )


def _byte_level(metadata: dict[str, Any], tokens: Sequence[str], split: _Split) -> Tokenizer:
    merges = gguf_value(metadata, "tokenizer.ggml.merges", list, None)
    if merges is None:
        raise ModelResolutionError("the GGUF file's byte-level tokenizer has no tokenizer.ggml.merges")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(
        models.BPE({token: i for i, token in enumerate(tokens)}, pairs, ignore_merges=split.ignore_merges)
    )
    if split.unicode_nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(metadata: dict[str, Any], tokens: Sequence[str]) -> Tokenizer:
    scores = gguf_value(metadata, "tokenizer.ggml.scores", list, None)
    if scores is None or len(scores) != len(tokens):
        raise ModelResolutionError("the GGUF file's SentencePiece tokenizer has no score for each token")
    unknown = gguf_value(metadata, "tokenizer.ggml.unknown_token_id", int, 0)
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocab, _merges_by_score(vocab, scores), unk_token=tokens[unknown], fuse_unk=True, byte_fallback=True)
    )
    add_space = gguf_value(metadata, "tokenizer.ggml.add_space_prefix", bool, True)
    # At the beginning and behind each special token, even where the text has a space of its own: as llama.cpp does, and
    # the tokenizer.json of Llama 2 and Mistral.
    prefix = [normalizers.Prepend("▁")] if add_space else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if add_space:
        steps.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges_by_score(vocab: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """SentencePiece joins the pair whose result scores highest; as a list of merges, that is the pairs by score."""
    found = [
        (scores[i], (token[:cut], token[cut:]))
        for token, i in vocab.items()
        for cut in range(1, len(token))
        if token[:cut] in vocab and token[cut:] in vocab
    ]
    found.sort(key=lambda entry: (-entry[0], -len(entry[1][0]), -len(entry[1][1])))
    return [pair for _, pair in found]


def _add_special_tokens(
    tokenizer: Tokenizer, metadata: dict[str, Any], tokens: Sequence[str], *, byte_level: bool
) -> None:
    kinds = gguf_value(metadata, "tokenizer.ggml.token_type", list, [])
    alphabet = frozenset(pre_tokenizers.ByteLevel.alphabet())
    # Some files call ordinary text a control token; in a byte-level vocabulary such text has characters outside
    # its alphabet, and would be added under a new id.
    control = [
        AddedToken(token, special=True, normalized=False)
        for token, kind in zip(tokens, kinds, strict=False)
        if kind == _CONTROL and (not byte_level or alphabet.issuperset(token))
    ]
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens(
        [
            AddedToken(token, special=False, normalized=False)
            for token, kind in zip(tokens, kinds, strict=False)
            if kind == _USER_DEFINED
        ]
    )

"""Tokenizers converted from GGUF metadata give the tokens of the models' own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from server.models.errors import ModelResolutionError
from server.models.gguf_metadata import read_gguf_metadata
from server.models.gguf_tokenizer import tokenizer_from_gguf

TEXTS = [
    "", " ", "  ", "\n", "\t\t x", "Hello, world!", "I'll we've THEY'RE it's", "naïve café ﬁ Å", "日本語の文章です。",
    "مرحبا بالعالم", "👩‍👩‍👧 🏳️‍🌈", "def f(x):\n    return x ** 2  # no\n\n\n", "a\r\nb\r\n\r\n",
    "…—“quoted”", "\u00a0x\u2003y",
    '{"key": [true, null, "v"]}', "<|im_start|>user\nhi<|im_end|>\n", "half <|im_ end", "x" * 300, "e\u0301",
    "The quick brown fox jumps over the lazy dog. " * 5, "ǅ ß ſ K", "\x00\x01\x7f", "\U0001f600\u200d",
]  # fmt: skip
DIGITS = ["1", "12", "123", "1234567", " 42", "  42", "a1b22", "3.14159", "٣٤٥", "½ ² Ⅷ", "x 2024-01-31T10:00:00Z"]


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path) -> Tokenizer:
    return tokenizer_from_gguf(read_gguf_metadata(smollm2_gguf)).tokenizer


@pytest.fixture(scope="module")
def smollm2_of_transformers(smollm2_gguf: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name)


def test_smollm2_equals_transformers(smollm2: Tokenizer, smollm2_of_transformers: Any) -> None:
    for text in TEXTS:
        ids = smollm2.encode(text, add_special_tokens=False).ids
        assert ids == smollm2_of_transformers.encode(text, add_special_tokens=False), text
        assert smollm2.decode(ids, skip_special_tokens=False) == text
    assert smollm2.get_vocab() == smollm2_of_transformers.get_vocab()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs", "N"])))
def test_smollm2_equals_transformers_on_any_text_without_digits(
    smollm2: Tokenizer, smollm2_of_transformers: Any, text: str
) -> None:
    assert smollm2.encode(text).ids == smollm2_of_transformers.encode(text, add_special_tokens=False)


def test_smollm2_takes_each_digit_by_itself(smollm2: Tokenizer, smollm2_of_transformers: Any) -> None:
    """As its published ``tokenizer.json`` and llama.cpp do; transformers' GGUF loader leaves that step out."""
    published = Tokenizer.from_str(smollm2_of_transformers.backend_tokenizer.to_str())
    published.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for text in DIGITS + TEXTS:
        assert smollm2.encode(text).ids == published.encode(text, add_special_tokens=False).ids, text
    assert [smollm2.decode([i]) for i in smollm2.encode("  42").ids] == ["  ", "4", "2"]


def test_special_tokens_are_special_and_whole(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("<|im_start|>user<|im_end|>").ids
    assert (ids[0], ids[-1]) == (1, 2)
    assert smollm2.decode(ids, skip_special_tokens=True) == "user"


# Other tokenizers, on small vocabularies trained here.


def write_gguf(path: Path, fields: Callable[[gguf.GGUFWriter], None]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    fields(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_byte_level_gguf(path: Path, pre: str) -> Path:
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator([*TEXTS, *DIGITS] * 3, trainer)
    vocab = tokenizer.get_vocab()
    tokens = [*sorted(vocab, key=vocab.__getitem__), "<think>"]
    merges = [" ".join(pair) for pair in merges_of(tokenizer)]

    def fields(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([3, *[1] * (len(tokens) - 2), 4])
        writer.add_token_merges(merges)
        writer.add_eos_token_id(0)
        writer.add_bos_token_id(0)
        writer.add_add_bos_token(False)

    return write_gguf(path, fields)


def merges_of(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "deepseek-r1-qwen", "tekken", "gpt-4o"])
def test_byte_level_splits_equal_transformers(tmp_path: Path, pre: str) -> None:
    from transformers import AutoTokenizer

    path = write_byte_level_gguf(tmp_path / "m.gguf", pre)
    ours = tokenizer_from_gguf(read_gguf_metadata(path)).tokenizer
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    for text in [*TEXTS, *DIGITS, "a<think>b<|end|>c"]:
        if pre == "qwen2" and text == "e\u0301":
            continue  # Qwen's published tokenizer composes it; transformers' GGUF loader leaves that step out
        if pre in ("llama-bpe", "tekken") and ours.encode(text).ids != theirs.encode(text, add_special_tokens=False):
            # Their published tokenizers take a piece that is a token whole; transformers' GGUF loader merges up to it.
            ours_text = ours.decode(ours.encode(text).ids, skip_special_tokens=False)
            assert ours_text == text
            assert len(ours.encode(text).ids) <= len(theirs.encode(text, add_special_tokens=False))
            continue
        assert ours.encode(text).ids == theirs.encode(text, add_special_tokens=False), text


def sentencepiece_fields(add_space: bool) -> tuple[list[str], list[float], Callable[[gguf.GGUFWriter], None]]:
    words = sorted({"▁" + word for text in TEXTS[5:8] + TEXTS[-4:] for word in text.split()})
    prefixes = {word[:n] for word in words for n in range(1, len(word) + 1)}
    pieces = sorted(prefixes | set("".join(words)), key=lambda piece: (len(piece), piece))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *pieces]
    scores = [0.0] * 259 + [-float((i * 7919) % 1009) for i in range(len(pieces))]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]

    def fields(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(kinds)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_add_space_prefix(add_space)

    return tokens, scores, fields


def sentencepiece_reference(text: str, tokens: list[str], scores: list[float], add_space: bool) -> list[int]:
    """SentencePiece's own procedure: join the neighbours whose join scores best, leftmost first, until none can be."""
    ids = {token: i for i, token in enumerate(tokens)}
    pieces = list(("▁" if add_space and text else "") + text.replace(" ", "▁"))
    while True:
        joins = [
            (-scores[ids[left + right]], i)
            for i, (left, right) in enumerate(itertools.pairwise(pieces))
            if left + right in ids
        ]
        if not joins:
            break
        _, at = min(joins)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return [
        i
        for piece in pieces
        for i in ([ids[piece]] if piece in ids else [ids[f"<0x{byte:02X}>"] for byte in piece.encode()])
    ]


@pytest.mark.parametrize("add_space", [True, False])
def test_sentencepiece_equals_its_own_procedure(tmp_path: Path, add_space: bool) -> None:
    tokens, scores, fields = sentencepiece_fields(add_space)
    converted = tokenizer_from_gguf(read_gguf_metadata(write_gguf(tmp_path / "m.gguf", fields)))
    assert converted.add_bos
    for text in TEXTS + DIGITS:
        if "<|" in text or text == "":
            continue
        ids = converted.tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == sentencepiece_reference(text, tokens, scores, add_space), text
        assert converted.tokenizer.decode(ids) == text
        assert converted.tokenizer.encode(text).ids == [1, *ids]


@pytest.mark.parametrize("pre", ["brand-new-split", None])
def test_an_unknown_split_is_refused_by_name(pre: str | None) -> None:
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.merges": []}
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    with pytest.raises(ModelResolutionError, match=pre or "does not say how"):
        tokenizer_from_gguf(metadata)


def test_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(ModelResolutionError, match="'bert'"):
        tokenizer_from_gguf({"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["a"]})


def test_a_cut_file_is_told_from_a_whole_one(tmp_path: Path, smollm2_gguf: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with smollm2_gguf.open("rb") as source:
        cut.write_bytes(source.read(20_000_000))
    with pytest.raises(ModelResolutionError, match="cut short"):
        read_gguf_metadata(cut)
    cut.write_bytes(b"GGUF")
    with pytest.raises(ModelResolutionError, match="damaged or cut short"):
        read_gguf_metadata(cut)
    cut.write_bytes(b"PK\x03\x04 not one")
    with pytest.raises(ModelResolutionError, match="not a GGUF file"):
        read_gguf_metadata(cut)

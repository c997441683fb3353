"""``--model`` leads to files on disk, or to an error that says what to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from constrained.vocabulary import Vocabulary
from server.models import ModelResolutionError, resolve


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANSION_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with one (empty) weight file."""
    path = tmp_path / "my-model"
    path.mkdir()
    write(path, "config.json", {"max_position_embeddings": 128, "vocab_size": 300, "eos_token_id": 1})
    write(path, "tokenizer_config.json", {"bos_token": {"content": "<s>"}, "eos_token": "</s>"})
    write(
        path, "generation_config.json", {"eos_token_id": [1, 2], "temperature": 0.6, "top_k": None, "do_sample": True}
    )
    (path / "model.safetensors").touch()
    tokenizer = Tokenizer(models.BPE({c: i + 3 for i, c in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "</s>", "<|end|>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def write(folder: Path, name: str, data: dict[str, Any]) -> None:
    (folder / name).write_text(json.dumps(data), encoding="utf-8")


def test_a_gguf_file_gives_everything_and_is_read_once(smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assets = resolve(str(smollm2_gguf))
    assert assets.name == smollm2_gguf.stem
    assert assets.context_length == 8192
    assert (assets.bos_token, assets.eos_token, assets.add_bos) == ("<|im_start|>", "<|im_end|>", False)
    assert assets.eos_token_ids == (2, 0)
    assert assets.chat_template is not None
    assert "<|im_start|>" in assets.chat_template
    vocabulary = Vocabulary.from_tokenizer_json(assets.tokenizer_json)
    assert len(vocabulary) == 49152
    assert vocabulary.token_bytes[2] == b"<|im_end|>"
    monkeypatch.setattr("server.models.gguf_assets.read_gguf_metadata", lambda path: pytest.fail("read again"))
    assert resolve(str(smollm2_gguf)) == assets


def test_a_folder_gives_everything(folder: Path) -> None:
    assets = resolve(str(folder))
    assert assets.name == "my-model"
    assert assets.weights_path == folder
    assert assets.tokenizer_json == folder / "tokenizer.json"
    assert assets.generation_defaults == {"temperature": 0.6}
    assert assets.context_length == 128
    assert (assets.bos_token, assets.eos_token, assets.add_bos) == ("<s>", "</s>", True)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert assets.eos_token_ids == (tokenizer.token_to_id("</s>"), 1, 2)


def test_names_limits_and_templates_can_be_given(folder: Path, tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("own")
    assets = resolve(str(folder), served_model_name="x", context_length=64, chat_template=str(template))
    assert (assets.name, assets.context_length, assets.chat_template) == ("x", 64, "own")
    assert resolve(str(folder), context_length=4096).context_length == 128


@pytest.mark.parametrize(
    ("config", "files", "chosen", "expected"),
    [
        (None, {}, None, None),
        ("plain", {}, None, "plain"),
        ("plain", {"chat_template.jinja": "file"}, None, "file"),
        ([{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}], {}, None, "d"),
        ([{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}], {}, "tool_use", "t"),
        ([{"name": "rag", "template": "r"}], {}, None, "r"),
        ("plain", {"additional_chat_templates/rag.jinja": "r"}, "rag", "r"),
    ],
)
def test_templates_are_found_where_transformers_finds_them(
    folder: Path, config: Any, files: dict[str, str], chosen: str | None, expected: str | None
) -> None:
    write(folder, "tokenizer_config.json", {"chat_template": config})
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    assert resolve(str(folder), chat_template=chosen).chat_template == expected


def test_a_choice_between_templates_is_asked_for(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"chat_template": [{"name": n, "template": n} for n in ("a", "b")]})
    with pytest.raises(ModelResolutionError, match=r"choose one with --chat-template \(a, b\)"):
        resolve(str(folder))
    with pytest.raises(ModelResolutionError, match="no template 'c'"):
        resolve(str(folder), chat_template="c")
    with pytest.raises(ModelResolutionError, match="there is no file"):
        resolve(str(folder), chat_template="none.jinja")


def test_missing_shards_are_named(folder: Path) -> None:
    write(
        folder, "model.safetensors.index.json", {"weight_map": {"a": "model-1.safetensors", "b": "model.safetensors"}}
    )
    with pytest.raises(ModelResolutionError, match=r"lacks 1 of its weight files: model-1\.safetensors"):
        resolve(str(folder))


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelResolutionError, match="convert them to safetensors"):
        resolve(str(folder))


def test_dummy_weights_need_a_config_alone(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != "config.json":
            path.unlink()
    with pytest.raises(ModelResolutionError, match="--load-format dummy"):
        resolve(str(folder))
    assets = resolve(str(folder), load_format="dummy")
    vocabulary = Vocabulary.from_tokenizer_json(assets.tokenizer_json)
    assert len(vocabulary) == 300
    tokenizer = Tokenizer.from_file(str(assets.tokenizer_json))
    assert tokenizer.decode(tokenizer.encode("any täxt").ids) == "any täxt"


def test_an_older_tokenizer_is_converted_once_in_a_process_of_its_own(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    write(folder, "vocab.json", {piece: i for i, piece in enumerate([*alphabet, "<|endoftext|>"])})
    (folder / "merges.txt").write_text("#version: 0.2\n")
    write(folder, "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer"})
    assets = resolve(str(folder))
    assert Tokenizer.from_file(str(assets.tokenizer_json)).encode("ab").tokens == ["a", "b"]
    again = resolve(str(folder))
    assert again.tokenizer_json == assets.tokenizer_json


def test_no_tokenizer_at_all_says_where_to_get_one(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelResolutionError, match="or name another folder with --tokenizer"):
        resolve(str(folder))


def test_another_folder_can_give_the_tokenizer(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "weights-only"
    other.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).rename(other / name)
    assert resolve(str(other), tokenizer=str(folder)).tokenizer_json == folder / "tokenizer.json"


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        ("./nowhere", {}, "there is no file or folder"),
        ("nowhere.gguf", {}, "there is no file or folder"),
        ("a b c", {}, "there is no file or folder"),
        (None, {"revision": "x"}, "the default model is fixed"),
    ],
)
def test_a_model_that_is_nowhere_is_an_error(model: str | None, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelResolutionError, match=said):
        resolve(model, **options)


def test_a_folder_of_one_gguf_file_means_the_file(tmp_path: Path, smollm2_gguf: Path) -> None:
    (tmp_path / "a.gguf").symlink_to(smollm2_gguf)
    assert resolve(str(tmp_path)).weights_path == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").symlink_to(smollm2_gguf)
    with pytest.raises(ModelResolutionError, match=r"2 \.gguf files; name one"):
        resolve(str(tmp_path))


def test_what_is_no_model_is_told_apart(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ModelResolutionError, match=r"holds no config\.json"):
        resolve(str(tmp_path))
    with pytest.raises(ModelResolutionError, match="name the folder"):
        resolve(str(folder / "model.safetensors"))
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelResolutionError, match="cannot be read as JSON"):
        resolve(str(folder))

"""Assets of a ``.gguf`` file; what is read from it once is kept in the cache folder."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from server.models.assets import ModelAssets
from server.models.cache import derived_dir, locked
from server.models.chat_templates import choose_template
from server.models.errors import ModelResolutionError
from server.models.gguf_metadata import gguf_value, read_gguf_metadata
from server.models.gguf_tokenizer import tokenizer_from_gguf
from server.models.progress import Progress

_FORMAT = "gguf-1"  # part of the cache key: change it when what is derived changes

# llama.cpp ends a text at each of these when it is a control token (``llama_vocab::impl::load``, "special_eog_ids").
_END_OF_TEXT_TOKENS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
    "<EOT>", "_<EOT>", "<|end_of_text|>", "<end_of_utterance>",
)  # fmt: skip
_SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def assets_from_gguf(path: Path, *, name: str, chat_template: str | None, progress: Progress) -> ModelAssets:
    """Read what the other processes need to know of a GGUF file.

    ``chat_template`` is a name among the file's own templates, or ``None`` for its default.
    """
    folder = derived_dir(_FORMAT, path)
    if not (folder / "model.json").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder, progress):
            if not (folder / "model.json").is_file():
                progress.stage(f"Reading {path.name}")
                _derive(path, folder)
    data = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    return ModelAssets(
        name=name,
        weights_path=path,
        tokenizer_json=folder / "tokenizer.json",
        chat_template=choose_template(data["chat_templates"], chat_template, where=path.name),
        bos_token=data["bos_token"],
        eos_token=data["eos_token"],
        eos_token_ids=tuple(data["eos_token_ids"]),
        add_bos=data["add_bos"],
        context_length=data["context_length"],
        generation_defaults=data["generation_defaults"],
        created=int(path.stat().st_mtime),
    )


def _derive(path: Path, folder: Path) -> None:
    metadata = read_gguf_metadata(path)
    converted = tokenizer_from_gguf(metadata)
    tokens = metadata["tokenizer.ggml.tokens"]
    eos_token_ids = _eos_token_ids(metadata, tokens)
    bos_id = gguf_value(metadata, "tokenizer.ggml.bos_token_id", int, None)
    architecture = gguf_value(metadata, "general.architecture", str, "")
    context_length = gguf_value(metadata, f"{architecture}.context_length", int, None)
    if context_length is None:
        raise ModelResolutionError(f"{path} does not say its context length ({architecture}.context_length)")
    data = {
        "bos_token": None if bos_id is None else tokens[bos_id],
        "eos_token": tokens[eos_token_ids[0]] if eos_token_ids else None,
        "eos_token_ids": eos_token_ids,
        "add_bos": converted.add_bos,
        "context_length": context_length,
        "chat_templates": _chat_templates(metadata),
        "generation_defaults": {
            ours: metadata[theirs] for theirs, ours in _SAMPLING_KEYS.items() if theirs in metadata
        },
    }
    # A whole folder appears at once, so that no start ever sees half of it.
    scratch = Path(tempfile.mkdtemp(prefix=".derive-", dir=folder.parent))
    try:
        converted.tokenizer.save(str(scratch / "tokenizer.json"), pretty=False)
        (scratch / "model.json").write_text(json.dumps(data), encoding="utf-8")
        scratch.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _eos_token_ids(metadata: dict[str, Any], tokens: list[str]) -> list[int]:
    named = [gguf_value(metadata, f"tokenizer.ggml.{key}_token_id", int, None) for key in ("eos", "eot", "eom")]
    kinds = gguf_value(metadata, "tokenizer.ggml.token_type", list, [])
    control = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds, strict=False)) if kind == 3}
    spelled = [control[token] for token in _END_OF_TEXT_TOKENS if token in control]
    return list(dict.fromkeys(i for i in [*named, *spelled] if i is not None and 0 <= i < len(tokens)))


def _chat_templates(metadata: dict[str, Any]) -> dict[str, str]:
    default = gguf_value(metadata, "tokenizer.chat_template", str, None)
    templates = {} if default is None else {"default": default}
    prefix = "tokenizer.chat_template."
    templates |= {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    return templates

"""Assets of a folder in Hugging Face's layout: ``config.json``, ``tokenizer.json``, safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from server.models.assets import ModelAssets
from server.models.chat_templates import choose_template
from server.models.errors import ModelResolutionError
from server.models.progress import Progress
from server.models.tokenizer_files import tokenizer_json_of

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx", "seq_length")
_GENERATION_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def assets_from_folder(
    folder: Path,
    *,
    name: str,
    chat_template: str | None,
    tokenizer: Path | None,
    weights_needed: bool,
    context_length: int | None,
    progress: Progress,
) -> ModelAssets:
    """Read what the other processes need to know of a model folder.

    ``tokenizer`` is another folder to take tokenizer and chat template from. Without ``weights_needed`` (the dummy
    loader) ``config.json`` is enough.
    """
    config = _read_object(folder / "config.json", needed=True)
    if weights_needed:
        _check_weights(folder)
    generation = _read_object(folder / "generation_config.json")
    source = tokenizer or folder
    tokenizer_json = tokenizer_json_of(source, config, made_up_if_missing=not weights_needed, progress=progress)
    token_config = _read_object(source / "tokenizer_config.json")
    try:
        loaded = Tokenizer.from_file(str(tokenizer_json))
    except Exception as error:  # the library raises bare Exception
        raise ModelResolutionError(f"{tokenizer_json} is not a usable tokenizer.json: {error}") from error
    bos_token, eos_token = _token(token_config, "bos_token"), _token(token_config, "eos_token")
    eos_token_ids = _eos_token_ids(config, generation, eos_token, loaded)
    if eos_token is None and eos_token_ids:
        eos_token = loaded.id_to_token(eos_token_ids[0])
    if bos_token is None and isinstance(bos_id := _text_config(config).get("bos_token_id"), int):
        bos_token = loaded.id_to_token(bos_id)
    return ModelAssets(
        name=name,
        weights_path=folder,
        tokenizer_json=tokenizer_json,
        chat_template=choose_template(_chat_templates(source, token_config), chat_template, where=str(source)),
        bos_token=bos_token,
        eos_token=eos_token,
        eos_token_ids=eos_token_ids,
        add_bos=_adds_bos(token_config, bos_token, loaded),
        context_length=_context_length(folder, config, context_length),
        generation_defaults={key: generation[key] for key in _GENERATION_KEYS if generation.get(key) is not None},
        created=int((folder / "config.json").stat().st_mtime),
    )


def _read_object(path: Path, *, needed: bool = False) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if needed:
            raise ModelResolutionError(f"{path.parent} holds no {path.name}: it is not a model folder") from None
        return {}
    except (OSError, ValueError) as error:
        raise ModelResolutionError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise ModelResolutionError(f"{path} holds no JSON object")
    return data


def _check_weights(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = _read_object(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelResolutionError(f"{index} has no weight_map")
        missing = sorted(shard for shard in set(weight_map.values()) if not (folder / shard).is_file())
        if missing:
            raise ModelResolutionError(f"{folder} lacks {len(missing)} of its weight files: {', '.join(missing[:5])}")
    elif not any(folder.glob("*.safetensors")):
        others = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth"))
        if others:
            raise ModelResolutionError(
                f"{folder} holds its weights as pickles ({others[0]}), which are not loaded because they can run code; "
                "convert them to safetensors (transformers: model.save_pretrained)"
            )
        raise ModelResolutionError(
            f"{folder} holds no *.safetensors weights (--load-format dummy makes random ones from config.json)"
        )


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Multimodal configs keep the language model's values one level down."""
    inner = config.get("text_config")
    return config | inner if isinstance(inner, dict) else config


def _context_length(folder: Path, config: dict[str, Any], override: int | None) -> int:
    for key in _CONTEXT_KEYS:
        value = _text_config(config).get(key)
        if isinstance(value, int) and value > 0:
            return value if override is None else min(override, value)
    if override is not None:
        return override
    raise ModelResolutionError(f"{folder}/config.json does not say the context length; give it with --context-length")


def _token(token_config: dict[str, Any], key: str) -> str | None:
    """Special tokens are written as text or as a serialised ``AddedToken``."""
    value = token_config.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _eos_token_ids(
    config: dict[str, Any], generation: dict[str, Any], eos_token: str | None, tokenizer: Tokenizer
) -> tuple[int, ...]:
    ids: list[int] = []
    if eos_token is not None and (token_id := tokenizer.token_to_id(eos_token)) is not None:
        ids.append(token_id)
    for value in (generation.get("eos_token_id"), _text_config(config).get("eos_token_id")):
        ids += [i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int)]
    return tuple(dict.fromkeys(ids))


def _adds_bos(token_config: dict[str, Any], bos_token: str | None, tokenizer: Tokenizer) -> bool:
    if bos_token is None:
        return False
    stated = token_config.get("add_bos_token")
    if isinstance(stated, bool):
        return stated
    encoded = tokenizer.encode("a").ids
    return bool(encoded) and encoded[0] == tokenizer.token_to_id(bos_token)


def _chat_templates(folder: Path, token_config: dict[str, Any]) -> dict[str, str]:
    """Files win over ``tokenizer_config.json``, as in transformers."""
    templates: dict[str, str] = {}
    stated = token_config.get("chat_template")
    if isinstance(stated, str):
        templates["default"] = stated
    elif isinstance(stated, list):
        templates |= {
            entry["name"]: entry["template"]
            for entry in stated
            if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
        }
    files = [("default", folder / "chat_template.jinja")]
    files += [(path.stem, path) for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))]
    for name, path in files:
        if path.is_file():
            templates[name] = path.read_text(encoding="utf-8")
    return templates

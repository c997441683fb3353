"""From ``--model`` to files on disk."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from server.models import embedded
from server.models.assets import ModelAssets
from server.models.chat_templates import template_from_option
from server.models.errors import ModelResolutionError
from server.models.folder_assets import assets_from_folder
from server.models.gguf_assets import assets_from_gguf
from server.models.hub import fetch_repository, is_repository_id
from server.models.progress import Progress, SilentProgress


def resolve(
    model: str | None = None,
    *,
    revision: str | None = None,
    tokenizer: str | None = None,
    chat_template: str | None = None,
    served_model_name: str | None = None,
    load_format: str = "auto",
    context_length: int | None = None,
    progress: Progress | None = None,
) -> ModelAssets:
    """Find, and where needed fetch, a model and all that the other processes need to know of it.

    Parameters
    ----------
    model
        A ``.gguf`` file, a folder, a Hugging Face id, or ``None`` for the embedded default.
    revision
        Branch, tag or commit of a Hugging Face id.
    tokenizer
        Another folder or Hugging Face id to take the tokenizer and chat template from.
    chat_template
        A Jinja file, or the name of one of the model's own templates.
    served_model_name
        The id clients use; ``None`` derives it from ``model``.
    load_format
        ``dummy`` needs no weights.
    context_length
        Lowers the model's own; needed only when the model does not state one.

    Raises
    ------
    ModelResolutionError
        With a message for a person.
    """
    progress = progress or SilentProgress()
    template_source, template_name = template_from_option(chat_template)
    path, default_name = _locate(model, revision=revision, weights=load_format != "dummy", progress=progress)
    name = served_model_name or default_name
    if path.is_file():
        if tokenizer is not None:
            raise ModelResolutionError("--tokenizer is for model folders; a GGUF file brings its own tokenizer")
        if load_format not in ("auto", "gguf"):
            raise ModelResolutionError(f"--load-format {load_format} needs a model folder, and {path} is a GGUF file")
        assets = assets_from_gguf(path, name=name, chat_template=template_name, progress=progress)
    else:
        if load_format == "gguf":
            raise ModelResolutionError(f"--load-format gguf needs a .gguf file, and {path} is a folder")
        assets = assets_from_folder(
            path,
            name=name,
            chat_template=template_name,
            tokenizer=_tokenizer_folder(tokenizer, progress),
            weights_needed=load_format != "dummy",
            context_length=context_length,
            progress=progress,
        )
    if context_length is not None:
        assets = dataclasses.replace(assets, context_length=min(context_length, assets.context_length))
    if template_source is not None:
        assets = dataclasses.replace(assets, chat_template=template_source)
    return assets


def _locate(model: str | None, *, revision: str | None, weights: bool, progress: Progress) -> tuple[Path, str]:
    """A ``.gguf`` file or a folder, and the name to serve it under."""
    if model is None:
        if revision is not None:
            raise ModelResolutionError("--revision needs --model: the default model is fixed")
        return embedded.fetch_embedded(progress), embedded.NAME
    path = Path(model).expanduser()
    if path.exists():
        if revision is not None:
            raise ModelResolutionError(f"--revision is for Hugging Face ids, and {path} is a local path")
        return _local(path.absolute())
    if path.is_absolute() or model.startswith((".", "~")) or path.suffix == ".gguf" or not is_repository_id(model):
        raise ModelResolutionError(f"--model: there is no file or folder {path}")
    return fetch_repository(model, revision=revision, weights=weights, progress=progress), model


def _local(path: Path) -> tuple[Path, str]:
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelResolutionError(f"--model: {path} is not a .gguf file; for safetensors name the folder")
        return path, path.stem
    if not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return files[0], files[0].stem
        if files:
            raise ModelResolutionError(
                f"--model: {path} holds {len(files)} .gguf files; name one ({', '.join(f.name for f in files[:4])})"
            )
    return path, path.resolve().name


def _tokenizer_folder(tokenizer: str | None, progress: Progress) -> Path | None:
    if tokenizer is None:
        return None
    path = Path(tokenizer).expanduser()
    if path.is_dir():
        return path.absolute()
    if path.exists() or not is_repository_id(tokenizer):
        raise ModelResolutionError(f"--tokenizer: there is no folder {path}")
    return fetch_repository(tokenizer, revision=None, weights=False, progress=progress)

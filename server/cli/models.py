"""``scansion models``: list, fetch, show."""

from __future__ import annotations

import argparse
from pathlib import Path

from server.launch.console import Console
from server.models import embedded, resolve


def list_models(_: argparse.Namespace) -> int:
    """Print the default model and the models in the hub's cache."""
    path = embedded.embedded_path()
    where = str(path) if embedded.is_embedded_cached() else "not here yet: scansion models fetch"
    rows = [
        ("MODEL", "SIZE", "WHERE"),
        (f"{embedded.NAME} (default)", _size(embedded.GGUF_BYTES), where),
        *((name, _size(size), str(folder)) for name, size, folder in _hub_models()),
    ]
    width = max(len(name) for name, _, _ in rows)
    for name, size, folder in rows:
        print(f"{name:{width}}  {size:>8}  {folder}")  # paths unwrapped, to be copied
    return 0


def fetch(options: argparse.Namespace) -> int:
    """Download a model and print where it lies."""
    with Console() as console:
        assets = resolve(options.model, revision=options.revision, progress=console)
    print(assets.weights_path)
    return 0


def show(options: argparse.Namespace) -> int:
    """Print what the server reads from a model."""
    with Console() as console:
        assets = resolve(options.model, revision=options.revision, progress=console)
    rows = {
        "name": assets.name,
        "weights": assets.weights_path,
        "tokenizer": assets.tokenizer_json,
        "context length": assets.context_length,
        "bos token": f"{assets.bos_token} ({'added' if assets.add_bos else 'not added'} to plain prompts)",
        "end of text": f"{assets.eos_token}, ids {', '.join(map(str, assets.eos_token_ids))}",
        "sampling defaults": assets.generation_defaults or "none",
        "chat template": "none" if assets.chat_template is None else f"\n{assets.chat_template}",
    }
    for key, value in rows.items():
        print(f"{key + ':':20}{value}")
    return 0


def _hub_models() -> list[tuple[str, int, Path]]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return []
    models = [(repo.repo_id, repo.size_on_disk, repo.repo_path) for repo in repositories if repo.repo_type == "model"]
    return sorted(models)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"

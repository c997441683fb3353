"""What the other processes need to know of a model, all on local disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ModelAssets:
    """A resolved model. Everything here is plain data: it is passed to spawned processes."""

    name: str
    """The served model id (``--served-model-name``, or derived from ``--model``)."""
    weights_path: Path
    """A ``.gguf`` file, or a folder with ``config.json``."""
    tokenizer_json: Path
    """A Hugging Face ``tokenizer.json`` (converted once and cached for GGUF files)."""
    chat_template: str | None
    """Jinja source; ``None`` when the model has none."""
    bos_token: str | None
    eos_token: str | None
    eos_token_ids: tuple[int, ...]
    """Every id that ends a text: tokenizer's, model's and generation config's."""
    add_bos: bool
    """Whether encoding a plain prompt begins with ``bos_token``."""
    context_length: int
    generation_defaults: dict[str, Any] = field(default_factory=dict)
    """``temperature``, ``top_p``, ``top_k``, ``min_p``, ``repetition_penalty`` from ``generation_config.json``."""
    created: int = 0
    """Unix seconds, for ``/v1/models``."""

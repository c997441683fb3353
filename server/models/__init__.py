"""Finding a model: the embedded default, Hugging Face ids, local folders and GGUF files."""

from server.models.assets import ModelAssets
from server.models.errors import ModelResolutionError
from server.models.resolve import resolve

__all__ = ["ModelAssets", "ModelResolutionError", "resolve"]

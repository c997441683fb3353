"""What can go wrong in the model runner."""

from __future__ import annotations


class ModelLoadError(RuntimeError):
    """The model cannot be served; the message says why and, where there is one, the way out."""


class RankError(RuntimeError):
    """A collective failed: another rank is gone, or did not come in time. The group cannot go on."""

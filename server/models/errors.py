"""Errors of resolving a model, told to a person."""

from __future__ import annotations


class ModelResolutionError(Exception):
    """``--model`` does not lead to a model that can be served. The message says what to change."""

"""Attention backends by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from model_runner.attention.base import AttentionBackend, AttentionLayer
from model_runner.errors import ModelLoadError

AUTO_ORDER: tuple[str, ...] = ("torch",)
"""What ``auto`` tries, best first."""

_BACKENDS: dict[str, Callable[[torch.dtype], type[AttentionBackend]]] = {}


def register_backend(name: str, choose: Callable[[torch.dtype], type[AttentionBackend]]) -> None:
    """
    Offer a backend.

    Parameters
    ----------
    name : str
        As in ``--attention-backend``.
    choose : callable
        From the compute type to the class, imported on demand; a backend may have a class of its own for float32.
    """
    _BACKENDS[name] = choose


def create_backend(
    name: str, layers: Sequence[AttentionLayer], *, page_size: int, dtype: torch.dtype, device: torch.device
) -> AttentionBackend:
    """
    Make the named backend, or with ``auto`` the first of :data:`AUTO_ORDER` that serves the model here.

    Raises
    ------
    ModelLoadError
        If there is no such backend, or it cannot run here, or it lacks something the model's layers ask for.
    """
    if name != "auto" and name not in _BACKENDS:
        raise ModelLoadError(f"unknown attention backend {name!r}; there are auto, {', '.join(sorted(_BACKENDS))}")
    wanted = frozenset[str]().union(*(layer.features for layer in layers))
    reasons = []
    for candidate in AUTO_ORDER if name == "auto" else (name,):
        backend = _BACKENDS[candidate](dtype)
        reason = backend.missing(device, dtype)
        lacking = sorted(wanted - backend.features)
        if reason is None and not lacking:
            return backend(layers, page_size=page_size, dtype=dtype, device=device)
        reasons.append(f"{candidate}: {reason or 'does not serve ' + ', '.join(lacking)}")
    raise ModelLoadError(f"no attention backend serves this model ({'; '.join(reasons)})")


def _choose_torch(dtype: torch.dtype) -> type[AttentionBackend]:
    if dtype == torch.float32:
        from model_runner.attention.blockwise import BlockwiseAttention

        return BlockwiseAttention
    from model_runner.attention.padded import PaddedAttention

    return PaddedAttention


register_backend("torch", _choose_torch)

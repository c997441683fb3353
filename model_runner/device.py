"""The device and the compute type."""

from __future__ import annotations

import torch

from model_runner.config import DtypeName
from model_runner.errors import ModelLoadError


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """
    The device that a configuration names; ``auto`` is CUDA when there is one.

    Of several ranks on a machine, ``local_rank`` takes the device that many places further.

    Raises
    ------
    ModelLoadError
        If there is no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelLoadError(f"{name!r} is not a device; use auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise ModelLoadError(f"device {name!r} is not supported; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        device = torch.device("cuda", (device.index or 0) + local_rank)
        if device.index is not None and device.index >= count:
            whose = f", which rank {local_rank} of this machine needs," if local_rank else ""
            raise ModelLoadError(f"device 'cuda:{device.index}'{whose} is not there: {count} CUDA devices were found")
    return device


def choose_dtype(name: DtypeName, device: torch.device) -> torch.dtype:
    """
    The compute type; ``auto`` is bfloat16, and float32 on GPUs that do not compute bfloat16.

    A CPU without instructions for bfloat16 gains from it too: it reads half the bytes, and computes in float32 when
    there are many rows (``model_runner/layers/linear.py``).

    Raises
    ------
    ModelLoadError
        If the device cannot compute it.
    """
    if name == "auto":
        is_old = device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0)
        return torch.float32 if is_old else torch.bfloat16
    if name not in ("bfloat16", "float16", "float32"):
        raise ModelLoadError(f"dtype {name!r} is not supported; use auto, bfloat16, float16 or float32")
    dtype: torch.dtype = getattr(torch, name)
    return dtype

"""Weights of a folder of safetensors files."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from model_runner.errors import ModelLoadError
from model_runner.loading.source import Cut, TensorSource, identify_files

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_HEADER_LENGTH = struct.Struct("<Q")


class SafetensorsSource(TensorSource):
    """Memory-mapped tensors of ``model.safetensors``, or of the shards that its index names."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._file_of: dict[str, Path] = {}
        self._handles: dict[Path, Any] = {}
        if (folder / INDEX_NAME).is_file():
            self._read_index(folder)
        elif (folder / SINGLE_NAME).is_file():
            path = folder / SINGLE_NAME
            self._file_of = dict.fromkeys(self._open(path).keys(), path)
        else:
            raise ModelLoadError(_describe_missing(folder))

    def names(self) -> frozenset[str]:
        return frozenset(self._file_of)

    def identity(self) -> str:
        paths = sorted(set(self._file_of.values()))
        return identify_files(paths, [_header_size(path) for path in paths])

    def _shape(self, name: str, asked: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._open(self._file_of[name]).get_slice(name).get_shape())

    def _load(self, name: str, shape: Sequence[int], cut: Cut | None) -> torch.Tensor:
        file = self._open(self._file_of[name])
        tensor: torch.Tensor = file.get_tensor(name) if cut is None else file.get_slice(name)[cut.index]
        return tensor

    def _release(self) -> None:
        self._handles.clear()

    def _read_index(self, folder: Path) -> None:
        path = folder / INDEX_NAME
        try:
            weight_map = json.loads(path.read_text())["weight_map"]
            self._file_of = {str(name): folder / Path(str(file)).name for name, file in weight_map.items()}
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelLoadError(f"{path} is not an index of safetensors shards: {error!r}") from error
        for shard in sorted(set(self._file_of.values())):
            if not shard.is_file():
                raise ModelLoadError(f"{path} names the shard {shard.name}, which is not there")
            held = set(self._open(shard).keys())
            absent = sorted(name for name, file in self._file_of.items() if file == shard and name not in held)
            if absent:
                raise ModelLoadError(f"{path} places {absent[0]!r} in {shard.name}, which does not hold it")

    def _open(self, path: Path) -> Any:
        if path not in self._handles:
            try:
                self._handles[path] = safe_open(path, framework="pt", device="cpu")
            except SafetensorError as error:
                raise ModelLoadError(f"{path} is not a whole safetensors file: {error}") from error
        return self._handles[path]


def _header_size(path: Path) -> int:
    with path.open("rb") as file:
        (length,) = _HEADER_LENGTH.unpack(file.read(_HEADER_LENGTH.size))
    return _HEADER_LENGTH.size + int(length)


def _describe_missing(folder: Path) -> str:
    pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    if pickled:
        return (
            f"{folder} has only pickled weights ({pickled[0]}), which can run code when they are read; "
            "convert them to safetensors"
        )
    return f"{folder} has neither {SINGLE_NAME} nor {INDEX_NAME}"

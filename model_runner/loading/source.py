"""A set of named tensors that is read one at a time."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from model_runner.errors import ModelLoadError

RELEASE_BYTES = 64 * 2**20
"""After this many bytes are read, a mapped file's pages are given back: they count as the process's memory too."""

_SAMPLES = 64
_SAMPLE_BYTES = 1024


@dataclass(frozen=True)
class Cut:
    """The part of a tensor along one dimension."""

    dim: int
    start: int
    stop: int

    @property
    def index(self) -> tuple[slice, ...]:
        """To index the whole tensor with."""
        return (*[slice(None)] * self.dim, slice(self.start, self.stop))

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Of the part of a tensor of shape ``whole``."""
        return (*whole[: self.dim], self.stop - self.start, *whole[self.dim + 1 :])


class TensorSource(ABC):
    """Named tensors, read one by one so that no second copy of the weights ever exists.

    Names are those of the model's Hugging Face checkpoint. The source remembers what was read, so that a tensor
    nobody asked for is an error and not a quietly different model.
    """

    def __init__(self) -> None:
        self._read_names: set[str] = set()
        self._bytes_since_release = 0

    @abstractmethod
    def names(self) -> frozenset[str]:
        """Every tensor there is."""

    @abstractmethod
    def identity(self) -> str:
        """The same for the same weights, wherever they lie, found without reading them all."""

    @abstractmethod
    def _shape(self, name: str, asked: Sequence[int]) -> tuple[int, ...]:
        """The shape of the whole tensor that is there."""

    @abstractmethod
    def _load(self, name: str, shape: Sequence[int], cut: Cut | None) -> torch.Tensor:
        """The tensor or its cut on the CPU, in the type it is stored in (dequantised if it is quantised)."""

    @abstractmethod
    def _release(self) -> None:
        """Give back what reading has mapped into memory; tensors that are still held stay valid."""

    def __contains__(self, name: str) -> bool:
        return name in self.names()

    def read(self, name: str, shape: Sequence[int], cut: Cut | None = None) -> torch.Tensor:
        """
        Read one tensor, or a part of it and no more.

        Parameters
        ----------
        name : str
            Its name in the checkpoint.
        shape : sequence of int
            The shape that the model's configuration asks for, of the whole tensor.
        cut : Cut, optional
            The part to read.

        Returns
        -------
        torch.Tensor
            On the CPU, in the stored type.

        Raises
        ------
        ModelLoadError
            If there is no such tensor, or its shape is another.
        """
        if name not in self:
            raise ModelLoadError(f"the checkpoint has no tensor {name!r}, which the model's configuration asks for")
        self._read_names.add(name)
        if self._bytes_since_release > RELEASE_BYTES:
            self._release()
            self._bytes_since_release = 0
        held = self._shape(name, shape)
        if held != tuple(shape):
            raise ModelLoadError(f"tensor {name!r} has shape {held}, the model's configuration asks for {tuple(shape)}")
        tensor = self._load(name, shape, None if cut is None or cut.shape(shape) == held else cut)
        self._bytes_since_release += tensor.nbytes
        return tensor

    def skip(self, name: str) -> None:
        """Mark a tensor as known and not needed."""
        self._read_names.add(name)

    def unread(self) -> list[str]:
        """Names of the tensors that nobody read or skipped."""
        return sorted(self.names() - self._read_names)


def identify_files(paths: Sequence[Path], header_sizes: Sequence[int]) -> str:
    """A hash of files' names, sizes, headers, and of some blocks of each, which no two trainings have in common."""
    digest = hashlib.blake2b(digest_size=16)
    for path, header_size in zip(paths, header_sizes, strict=True):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            digest.update(file.read(header_size))
            for number in range(_SAMPLES):
                file.seek(header_size + (size - header_size) * number // _SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def refuse_unread(source: TensorSource) -> None:
    """Raise :class:`ModelLoadError` naming the tensors that the model did not use."""
    unread = source.unread()
    if unread:
        shown = ", ".join(unread[:8]) + (f" and {len(unread) - 8} more" if len(unread) > 8 else "")
        raise ModelLoadError(f"the checkpoint has tensors that this model has no place for: {shown}")

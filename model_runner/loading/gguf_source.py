"""Weights and configuration of a GGUF file."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import PretrainedConfig

from model_runner.errors import ModelLoadError
from model_runner.loading.gguf_config import PERMUTED_ARCHITECTURES, build_config
from model_runner.loading.gguf_names import EXPERT_NAMES, hugging_face_name, split_block
from model_runner.loading.source import Cut, TensorSource, identify_files

_LENGTH = struct.Struct("<Q")
_LIST_HEADER = struct.Struct("<IQ")  # kind of its items, how many
_QUERY_OR_KEY = re.compile(r"model\.layers\.\d+\.self_attn\.(q|k)_proj\.(weight|bias)")


@dataclass(frozen=True)
class _Place:
    tensor: gguf.ReaderTensor
    expert: int | None = None


class GgufSource(TensorSource):
    """Tensors of a memory-mapped GGUF file, dequantised one by one."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        try:
            reader = self._reader = _PlainReader(path)
        except (ValueError, IndexError, KeyError, OSError, struct.error) as error:
            raise ModelLoadError(f"{path} is not a whole GGUF file: {error}") from error
        self.architecture, self.config = build_config(reader, path)
        self._places: dict[str, _Place] = {}
        for tensor in reader.tensors:
            self._place(tensor)

    def names(self) -> frozenset[str]:
        return frozenset(self._places)

    def identity(self) -> str:
        return identify_files([self._path], [int(self._reader.data_offset)])

    def _shape(self, name: str, asked: Sequence[int]) -> tuple[int, ...]:
        place = self._places[name]
        shape = tuple(int(size) for size in reversed(place.tensor.shape))
        return shape if place.expert is None else shape[1:]

    def _load(self, name: str, shape: Sequence[int], cut: Cut | None) -> torch.Tensor:
        place = self._places[name]
        data = place.tensor.data if place.expert is None else place.tensor.data[place.expert]
        try:
            values = _dequantize(data, place.tensor.tensor_type, cut)
        except NotImplementedError as error:
            raise ModelLoadError(
                f"tensor {place.tensor.name!r} is quantised as {place.tensor.tensor_type.name}, "
                "which the gguf package cannot dequantise"
            ) from error
        values = np.ascontiguousarray(values, dtype=np.float32)
        tensor = torch.from_numpy(values if values.flags.writeable else values.copy())
        match = _QUERY_OR_KEY.fullmatch(name)
        if match is not None and self.architecture in PERMUTED_ARCHITECTURES:
            num_heads = _num_heads(self.config, is_key=match[1] == "k")
            tensor = _undo_permutation(tensor, shape[0] // num_heads)
        return tensor

    def _release(self) -> None:
        self._reader.release()

    def _place(self, tensor: gguf.ReaderTensor) -> None:
        block = split_block(tensor.name)
        if block is None or block[1] not in EXPERT_NAMES:
            self._places[hugging_face_name(tensor.name)] = _Place(tensor)
            return
        index, rest = block
        for expert in range(tensor.data.shape[0]):
            name = f"model.layers.{index}.mlp.experts.{expert}.{EXPERT_NAMES[rest]}.weight"
            self._places[name] = _Place(tensor, expert)


class _PlainReader(gguf.GGUFReader):
    """
    Reads what the runner needs, through a plain array over the mapping.

    A view of a ``numpy.memmap`` costs many times that of an array.
    """

    @property
    def data(self) -> Any:
        return self._data

    @data.setter
    def data(self, mapping: Any) -> None:
        self._data: Any = np.asarray(mapping)
        self._mapping = mapping.base

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        """Step over lists: the runner needs no vocabulary, and an object for each text of it takes a second."""
        if raw_type != gguf.GGUFValueType.ARRAY or self.byte_order == "S":
            return super()._get_field_parts(orig_offs, raw_type)
        data = memoryview(self._data)
        kind, length = _LIST_HEADER.unpack_from(data, orig_offs)
        item = self.gguf_scalar_to_np.get(kind)
        start = orig_offs + _LIST_HEADER.size
        if item is not None:
            end = start + length * np.dtype(item).itemsize
        elif kind == gguf.GGUFValueType.STRING:
            end = start
            for _ in range(length):
                end += _LENGTH.size + _LENGTH.unpack_from(data, end)[0]
        else:
            return super()._get_field_parts(orig_offs, raw_type)
        if end > len(data):
            raise ValueError("it ends within a list")
        return end - orig_offs, [], [], [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(kind)]

    def release(self) -> None:
        """Let go of the mapping's pages; they are read again when they are needed."""
        if isinstance(self._mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED)


def _dequantize(data: Any, kind: gguf.GGMLQuantizationType, cut: Cut | None) -> Any:
    """A tensor's values, or those of its cut; rows are cut as they are stored, columns to whole blocks first."""
    if cut is None:
        return gguf.quants.dequantize(data, kind)
    if cut.dim < data.ndim - 1 or data.dtype != np.uint8:
        return gguf.quants.dequantize(data[cut.index], kind)
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    first, last = cut.start // block_size, -(-cut.stop // block_size)
    blocks = np.ascontiguousarray(data[..., first * block_bytes : last * block_bytes])
    return gguf.quants.dequantize(blocks, kind)[..., cut.start - first * block_size : cut.stop - first * block_size]


def _undo_permutation(tensor: torch.Tensor, head_dim: int) -> torch.Tensor:
    """From interleaved rotary pairs, as llama.cpp rotates, to two halves per head, as Hugging Face does."""
    return torch.unflatten(tensor, 0, (-1, head_dim // 2, 2)).transpose(1, 2).reshape(tensor.shape)


def _num_heads(config: PretrainedConfig, *, is_key: bool) -> int:
    return int(config.num_key_value_heads if is_key else config.num_attention_heads)

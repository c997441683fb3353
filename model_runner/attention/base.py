"""What an attention backend is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from model_runner.batch import RaggedBatch
from model_runner.forward_row import ForwardRow

AttentionFeature = Literal["sliding_window", "softcap", "sinks", "value_width"]


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionLayer:
    """Shape and keywords of one layer's attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    sliding_window: int | None = None
    """A query sees the last ``sliding_window`` positions, its own included."""
    softcap: float | None = None
    """Scores become ``softcap * tanh(score / softcap)``."""
    sinks: torch.Tensor | None = None
    """[H]: the logit of an extra key without a value."""

    @property
    def features(self) -> frozenset[AttentionFeature]:
        """What this layer asks of a backend beyond plain causal attention."""
        wanted: dict[AttentionFeature, bool] = {
            "sliding_window": self.sliding_window is not None,
            "softcap": self.softcap is not None,
            "sinks": self.sinks is not None,
            "value_width": self.value_dim != self.head_dim,
        }
        return frozenset(feature for feature, is_wanted in wanted.items() if is_wanted)


class AttentionBackend(ABC):
    """
    Causal attention of a ragged batch over pages of keys and values.

    A backend is made for one model; it owns the layout of the KV tensors. One forward pass calls :meth:`plan` once
    and :meth:`attend` once per layer, so everything that depends only on the batch belongs into the plan.
    """

    name: ClassVar[str]
    features: ClassVar[frozenset[AttentionFeature]]
    """What layers may ask for; loading a model that asks for more fails, naming it."""

    def __init__(
        self, layers: Sequence[AttentionLayer], *, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.layers = tuple(layers)
        self.page_size = page_size
        self.dtype = dtype
        self.device = device

    @classmethod
    @abstractmethod
    def missing(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        """Why the backend cannot run here, or ``None``."""

    @abstractmethod
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""

    @abstractmethod
    def allocate(self, num_pages: int) -> None:
        """Make the KV tensors."""

    def arrange(self, rows: Sequence[ForwardRow]) -> Sequence[int]:
        """The order in which the batch should hold the rows' tokens: indices into ``rows``."""
        return range(len(rows))

    @abstractmethod
    def plan(self, batch: RaggedBatch) -> Any:
        """Everything :meth:`attend` needs of the batch; handed back to it unread."""

    @abstractmethod
    def attend(
        self, layer_index: int, plan: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """
        Write the batch's keys and values to their pages, then attend.

        Parameters
        ----------
        layer_index : int
            Index into :attr:`layers`.
        plan : Any
            What :meth:`plan` returned for this batch.
        query : torch.Tensor
            [T, H, D].
        key, value : torch.Tensor
            [T, Hkv, D] and [T, Hkv, Dv].

        Returns
        -------
        torch.Tensor
            [T, H * Dv].
        """

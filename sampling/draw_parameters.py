"""What the draws of a step need to know about each row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sampling.noise import UInt32Array

MAX_LOGIT = float(np.finfo(np.float32).max)
"""Stands for +inf: a model that is infinitely sure of some tokens draws among exactly those."""


EVERY_TOKEN = np.iinfo(np.int64).max


@dataclass(frozen=True)
class DrawParameters:
    """What S draws need, on the host: each array is ``[S]``, ``keys`` ``[S, 4]``."""

    temperature: npt.NDArray[np.float64]
    top_k: npt.NDArray[np.int64]
    """:data:`EVERY_TOKEN` where none is cut."""
    top_p: npt.NDArray[np.float64]
    min_p: npt.NDArray[np.float64]
    keys: UInt32Array

    @property
    def is_greedy(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.temperature == 0.0, np.bool_)

    @property
    def needs_order(self) -> npt.NDArray[np.bool_]:
        """Draws whose filters look at the order of tokens."""
        return ~self.is_greedy & ((self.top_p < 1.0) | (self.top_k < EVERY_TOKEN))

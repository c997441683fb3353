"""Agreement between tensor-parallel ranks on which grammars are ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch

AllGather = Callable[[torch.Tensor], Sequence[torch.Tensor]]
"""Every rank's tensor, in rank order, given this rank's. [N] int8 each"""


class Verdict:
    """What a rank says of one request's grammar, in bits."""

    PENDING: Final = 0
    READY: Final = 1
    FAILED: Final = 2
    LATE: Final = 4
    """Its deadline has passed; only the rank that keeps the time says so."""


def agree(mine: Sequence[int], all_gather: AllGather | None) -> list[int]:
    """Ready where every rank is ready, failed where any rank failed; late where rank 0's deadline passes before either.

    A rank must not run a request whose grammar another does not have yet, and must not keep one that another gave up:
    hence the intersection and the union. A failure counts once rank 0 is done too: its error is the one that the client
    reads.

    Parameters
    ----------
    mine
        This rank's verdicts by queue position; every rank has the same queue. The answer has one bit set, or none.
    all_gather
        ``None`` with a single rank.
    """
    everyone: list[Sequence[int]] = [mine]
    if all_gather is not None:
        everyone = [part.tolist() for part in all_gather(torch.tensor(mine, dtype=torch.int8))]
    return [_common(verdicts) for verdicts in zip(*everyone, strict=True)]


def _common(verdicts: Sequence[int]) -> int:
    first = verdicts[0]
    if all(verdict & Verdict.READY for verdict in verdicts):
        return Verdict.READY
    if first & Verdict.FAILED:
        return Verdict.FAILED
    if first & Verdict.LATE:
        return Verdict.LATE
    if first & Verdict.READY and any(verdict & Verdict.FAILED for verdict in verdicts):
        return Verdict.FAILED
    return Verdict.PENDING

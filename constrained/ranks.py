"""Agreement between tensor-parallel ranks on which grammars are ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

AllGather = Callable[[torch.Tensor], Sequence[torch.Tensor]]
"""Every rank's tensor, in rank order, given this rank's. [2, N] int8 each"""


def agree(ready: Sequence[bool], failed: Sequence[bool], all_gather: AllGather | None) -> tuple[list[bool], list[bool]]:
    """Ready where every rank is ready, failed where any rank failed.

    A rank must not run a request whose grammar another does not have yet, and must not keep one that another gave up:
    hence the intersection and the union.

    Parameters
    ----------
    ready, failed
        This rank's flags by queue position; every rank has the same queue.
    all_gather
        ``None`` with a single rank.
    """
    if all_gather is None:
        return [r and not f for r, f in zip(ready, failed, strict=True)], list(failed)
    mine = torch.tensor([list(ready), list(failed)], dtype=torch.int8).reshape(2, -1)
    everyone = torch.stack(list(all_gather(mine)))
    all_failed = everyone[:, 1].amax(0).bool().tolist()
    all_ready = everyone[:, 0].amin(0).bool().tolist()
    return [r and not f for r, f in zip(all_ready, all_failed, strict=True)], all_failed

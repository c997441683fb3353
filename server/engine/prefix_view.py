"""Roughly which beginnings of prompts a group of schedulers has in its prefix cache, as seen from an HTTP process."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

BLOCK_TOKENS = 16
"""Tokens of a block; the default page of the KV cache, below which nothing is shared."""
MAX_BLOCKS = 1 << 16
"""Blocks remembered of one group at most, about eight megabytes."""


def block_keys(token_ids: Sequence[int]) -> list[int]:
    """One key for each whole block; it stands for everything up to the block's end, like the path to a radix node."""
    ids = array("i", token_ids)
    data, width = ids.tobytes(), ids.itemsize * BLOCK_TOKENS
    keys: list[int] = []
    key = 0
    for end in range(width, len(data) + 1, width):
        key = hash((key, data[end - width : end]))
        keys.append(key)
    return keys


class PrefixView:
    """The blocks of the prompts that were sent to one group; the longest unused ones are forgotten first.

    A guess: it knows nothing of other HTTP processes, of answers, and of what the group dropped before its time. A
    wrong guess costs time, never an answer.

    Parameters
    ----------
    max_tokens
        What the group's cache holds.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_blocks = min(max_tokens // BLOCK_TOKENS, MAX_BLOCKS)
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def matched_tokens(self, keys: Sequence[int]) -> int:
        """Tokens at the beginning of a prompt that the group should have, given the prompt's :func:`block_keys`."""
        matched = 0
        for key in keys:
            if key not in self._blocks:
                break
            matched += BLOCK_TOKENS
        return matched

    def add(self, keys: Sequence[int]) -> None:
        """The group is given a prompt."""
        # The end first: what is forgotten first is then the end of a path, not its beginning.
        for key in reversed(keys[: self._max_blocks]):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """The group's cache was emptied."""
        self._blocks.clear()

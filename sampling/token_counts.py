"""How often each token appeared in each row: lists of distinct tokens, never a row of the vocabulary's width."""

from __future__ import annotations

from collections.abc import Sequence

import torch

HISTORY_LENGTH = 256
"""Counted tokens a row remembers in order, for the prefixes of bad words."""

_MINIMUM_CAPACITY = 32


class TokenCounts:
    """Counts of B rows, on the device, changed without waiting for it.

    ``token_ids`` ``[B, C]`` int32 holds each row's distinct tokens, then -1; ``counts`` ``[B, C]`` int32 how
    often each was counted (zero for a draft that was not accepted);
    ``in_prompt`` ``[B, C]`` bool marks tokens of a prompt that counts. The capacity C doubles as rows fill.
    """

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self.device = device
        self.token_ids = torch.full((num_rows, _MINIMUM_CAPACITY), -1, dtype=torch.int32, device=device)
        self.counts = torch.zeros((num_rows, _MINIMUM_CAPACITY), dtype=torch.int32, device=device)
        self.in_prompt = torch.zeros((num_rows, _MINIMUM_CAPACITY), dtype=torch.bool, device=device)
        self.num_distinct = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.len_output_tokens = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.history = torch.zeros((num_rows, HISTORY_LENGTH), dtype=torch.int32, device=device)
        # An upper bound of num_distinct.max() kept on the host: growing must not wait for the device each step.
        self._most_distinct = 0

    @property
    def num_rows(self) -> int:
        return self.token_ids.shape[0]

    @property
    def num_bytes(self) -> int:
        """Bytes of device memory held."""
        tensors = (
            self.token_ids,
            self.counts,
            self.in_prompt,
            self.num_distinct,
            self.len_output_tokens,
            self.history,
        )
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def mark_prompt(self, row: int, prompt_token_ids: Sequence[int]) -> None:
        """Mark a prompt's tokens as seen in a row that has counted nothing yet."""
        distinct = torch.unique(torch.tensor(prompt_token_ids, dtype=torch.int32)).to(self.device)
        length = distinct.numel()
        self.reserve(length)
        self.token_ids[row, :length] = distinct
        self.in_prompt[row, :length] = True
        self.num_distinct[row] = length

    def reserve(self, num_tokens: int) -> None:
        """Make room for ``num_tokens`` new distinct tokens in every row; entries found before may move."""
        self._most_distinct += num_tokens
        if self._most_distinct <= self.token_ids.shape[1]:
            return
        # The bound counts repeated and rejected tokens as new ones. Only here, at a doubling, ask for the truth.
        self._drop_unused()
        longest = int(self.num_distinct.max()) if self.num_rows else 0
        self._most_distinct = longest + num_tokens
        # Keep a quarter free: a list that is almost full would ask again at once.
        capacity = self.token_ids.shape[1]
        while self._most_distinct > capacity - capacity // 4:
            capacity *= 2
        self._widen(capacity)

    def find_or_insert(self, rows: torch.Tensor, token_ids: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        """Entry of one token for each of the rows, made at count zero where the row has none.

        ``rows`` ``[N]`` distinct int64, ``token_ids`` ``[N]``, ``valid`` ``[N]`` bool; returns ``[N]`` int64, 0 where
        not valid. :meth:`reserve` has made room.
        """
        wanted = token_ids.to(torch.int32)
        listed = self.token_ids[rows]
        match = listed == wanted[:, None]
        found = match.any(dim=1)
        length = self.num_distinct[rows]
        entry = torch.where(found, match.to(torch.uint8).argmax(dim=1), length)
        entry = torch.where(valid, entry, 0)
        self.token_ids[rows, entry] = torch.where(valid, wanted, listed[:, 0])
        self.num_distinct[rows] = length + (valid & ~found)
        return entry

    def count(
        self, rows: torch.Tensor, token_ids: torch.Tensor, valid: torch.Tensor, entries: torch.Tensor | None = None
    ) -> None:
        """Count one accepted token for each of the rows where ``valid``; ``entries`` from :meth:`find_or_insert`."""
        if entries is None:
            entries = self.find_or_insert(rows, token_ids, valid)
        self.counts[rows, entries] += valid.to(torch.int32)
        length = self.len_output_tokens[rows]
        place = length % HISTORY_LENGTH
        self.history[rows, place] = torch.where(valid, token_ids.to(torch.int32), self.history[rows, place])
        self.len_output_tokens[rows] = length + valid

    def recent(self, rows: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """The last ``num_tokens`` counted tokens of each row, oldest first, -1 before its start: ``[N, n]`` int32."""
        back = torch.arange(-num_tokens, 0, device=self.device)
        index = self.len_output_tokens[rows][:, None] + back[None, :]
        tokens = torch.gather(self.history[rows], 1, index % HISTORY_LENGTH)
        return torch.where(index >= 0, tokens, -1)

    def filter(self, keep_indices: torch.Tensor) -> None:
        """Keep the given rows, in the given order."""
        self.token_ids = self.token_ids[keep_indices]
        self.counts = self.counts[keep_indices]
        self.in_prompt = self.in_prompt[keep_indices]
        self.num_distinct = self.num_distinct[keep_indices]
        self.len_output_tokens = self.len_output_tokens[keep_indices]
        self.history = self.history[keep_indices]

    def merge(self, their: TokenCounts) -> None:
        """Append another batch's rows."""
        capacity = max(self.token_ids.shape[1], their.token_ids.shape[1])
        self._widen(capacity)
        padded = their._padded(capacity)
        self.token_ids = torch.cat([self.token_ids, padded[0]])
        self.counts = torch.cat([self.counts, padded[1]])
        self.in_prompt = torch.cat([self.in_prompt, padded[2]])
        self.num_distinct = torch.cat([self.num_distinct, their.num_distinct])
        self.len_output_tokens = torch.cat([self.len_output_tokens, their.len_output_tokens])
        self.history = torch.cat([self.history, their.history])
        self._most_distinct = max(self._most_distinct, their._most_distinct)

    def _drop_unused(self) -> None:
        """Move entries that count nothing out of the lists."""
        used = (self.counts > 0) | self.in_prompt
        order = torch.argsort(used.to(torch.uint8), dim=1, descending=True, stable=True)
        used = torch.gather(used, 1, order)
        self.token_ids = torch.where(used, torch.gather(self.token_ids, 1, order), -1)
        self.counts = torch.gather(self.counts, 1, order)
        self.in_prompt = torch.gather(self.in_prompt, 1, order)
        self.num_distinct = used.sum(dim=1)

    def _padded(self, capacity: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        missing = (0, capacity - self.token_ids.shape[1])
        pad = torch.nn.functional.pad
        return pad(self.token_ids, missing, value=-1), pad(self.counts, missing), pad(self.in_prompt, missing)

    def _widen(self, capacity: int) -> None:
        if capacity > self.token_ids.shape[1]:
            self.token_ids, self.counts, self.in_prompt = self._padded(capacity)

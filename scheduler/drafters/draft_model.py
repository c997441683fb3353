"""Speculation with a smaller model that has the same tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from model_runner.forward_row import ForwardRow
from sampling.draw import draw
from sampling.draw_parameters import EVERY_TOKEN, DrawParameters
from sampling.noise import position_keys
from scheduler.drafters.adaptive import AdaptiveLength
from scheduler.drafters.source import DraftSource
from scheduler.interfaces import Runner
from scheduler.memory.kv_pool import KvPool

if TYPE_CHECKING:
    from scheduler.requests.request import Request


@dataclass(slots=True)
class _State:
    length: AdaptiveLength
    block_table: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    """Tokens with KV in the draft model's pages; those behind the first that is no longer the request's are stale."""
    drafts: tuple[int, ...] = ()
    num_known: int = -1
    """How many tokens the request had when ``drafts`` were drawn."""


class DraftModelDrafter(DraftSource):
    """Draws from a draft model with the very noise that the verification will use.

    So where the two models' distributions are alike, they draw the same token even at high temperatures. Penalties,
    logit bias and grammars are left out: a guess they would change is refused by the verification.

    All requests of a step are drafted together, one forward pass for each draft position. A request whose text the
    draft model has not computed yet catches up, at most ``max_batch_tokens`` tokens a step, before it drafts.

    Parameters
    ----------
    runner
        The draft model, with its own pages.
    pool
        Those pages.
    context_length
        Of the draft model.
    max_tokens
        Longest draft.
    max_batch_tokens
        Most tokens of one forward pass.
    """

    name = "draft-model"

    def __init__(
        self, runner: Runner, pool: KvPool, *, context_length: int, max_tokens: int, max_batch_tokens: int
    ) -> None:
        self._runner = runner
        self._pool = pool
        self._context_length = context_length
        self._max_tokens = max_tokens
        self._max_batch_tokens = max_batch_tokens
        self._states: dict[int, _State] = {}

    def prepare(self, requests: Sequence[Request]) -> None:
        budget = self._max_batch_tokens
        drafting: list[tuple[Request, _State]] = []
        rows: list[ForwardRow] = []
        for request in requests:
            state = self._states.setdefault(request.key, _State(AdaptiveLength(self._max_tokens)))
            state.drafts = ()
            if state.length.is_paused():
                continue
            row = self._catch_up(request, state, budget)
            if row is None:
                continue
            budget -= len(row.token_ids)
            rows.append(row)
            if row.num_logits:
                drafting.append((request, state))
        if rows:
            logits = self._runner.forward(rows)
            if drafting:
                self._draft(drafting, logits)

    def propose(self, request: Request, behind: tuple[int, ...], max_tokens: int) -> Sequence[int]:
        state = self._states.get(request.key)
        if state is None or state.num_known != len(request.token_ids) or state.drafts[: len(behind)] != behind:
            return ()
        return state.drafts[len(behind) :][:max_tokens]

    def verified(self, request: Request, num_proposed: int, num_accepted: int) -> None:
        state = self._states.get(request.key)
        if state is not None:
            state.length.count(num_proposed, num_accepted)

    def remove(self, request: Request) -> None:
        state = self._states.pop(request.key, None)
        if state is not None:
            self._pool.release(state.block_table)

    def _catch_up(self, request: Request, state: _State, budget: int) -> ForwardRow | None:
        """The tokens that the draft model does not know yet, with logits behind the last if it is among them."""
        known = request.token_ids
        start = _num_common(state.computed, known)
        # The last token is computed again if need be: its logits are needed.
        start = min(start, len(known) - 1)
        end = min(len(known), start + budget)
        is_complete = end == len(known)
        num_drafts = min(state.length.length, request.num_drawable - 1) if is_complete else 0
        if end <= start or (is_complete and num_drafts <= 0) or len(known) + num_drafts > self._context_length:
            return None
        missing = self._pool.num_pages_for(end + num_drafts) - len(state.block_table)
        if missing > self._pool.num_free:
            return None
        if missing > 0:
            state.block_table += self._pool.take(missing)
        state.computed[start:] = known[start:end]
        return ForwardRow(known[start:end], start, state.block_table, int(is_complete))

    def _draft(self, drafting: Sequence[tuple[Request, _State]], logits: torch.Tensor) -> None:
        """Draw one token for all, compute it, and so on; ``logits [B, V]`` are those behind the known tokens."""
        lengths = {request.key: min(state.length.length, request.num_drawable - 1) for request, state in drafting}
        for request, state in drafting:
            state.num_known = len(request.token_ids)
        ahead = 0
        while True:
            drawn = self._draw([request for request, _ in drafting], ahead, logits)
            for (_, state), token in zip(drafting, drawn, strict=True):
                state.drafts += (token,)
            ahead += 1
            drafting = [(request, state) for request, state in drafting if lengths[request.key] > ahead]
            if not drafting:
                return
            rows = []
            for _, state in drafting:
                rows.append(ForwardRow((state.drafts[-1],), len(state.computed), state.block_table, 1))
                state.computed.append(state.drafts[-1])
            logits = self._runner.forward(rows)

    def _draw(self, requests: Sequence[Request], ahead: int, logits: torch.Tensor) -> list[int]:
        samplings = [request.sampling for request in requests]
        keys = position_keys(
            np.array([request.group.seed for request in requests], np.int64),
            np.array([request.choice_index for request in requests], np.int64),
            np.array([request.num_output + ahead for request in requests], np.int64),
        )
        parameters = DrawParameters(
            temperature=np.array([sampling.temperature for sampling in samplings], np.float64),
            top_k=np.array([s.top_k if s.top_k > 0 else EVERY_TOKEN for s in samplings], np.int64),
            top_p=np.array([sampling.top_p for sampling in samplings], np.float64),
            min_p=np.array([sampling.min_p for sampling in samplings], np.float64),
            keys=keys,
        )
        token_ids, _ = draw(logits, parameters)
        drawn: list[int] = token_ids.tolist()
        return drawn


def _num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common beginning."""
    common = min(len(first), len(second))
    if first[:common] == second[:common]:
        return common
    return next(index for index in range(common) if first[index] != second[index])

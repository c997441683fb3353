"""Mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from model_runner.layers.activation import silu_and_mul
from model_runner.layers.linear import Linear


class GatedMlp:
    """``down(silu(gate(x)) * up(x))`` with gate and up fused into one product."""

    def __init__(self, gate_up: Linear, down: Linear, *, is_exact: bool) -> None:
        self._gate_up = gate_up
        self._down = down
        self._is_exact = is_exact

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._down(silu_and_mul(self._gate_up(x), is_exact=self._is_exact))


class MixtureOfExperts:
    """Each token goes through its most probable experts; their outputs are added in the order of the choice."""

    def __init__(
        self,
        router: Linear,
        experts: Sequence[GatedMlp],
        *,
        experts_per_token: int,
        normalize_weights: bool,
        shared_expert: GatedMlp | None = None,
        shared_gate: Linear | None = None,
    ) -> None:
        self._router = router
        self._experts = experts
        self._experts_per_token = experts_per_token
        self._normalize_weights = normalize_weights
        self._shared_expert = shared_expert
        self._shared_gate = shared_gate

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weights, expert_ids = self._route(x)
        num_tokens, num_chosen = expert_ids.shape
        # Assignments sorted by expert, so that each expert that was chosen runs once, on all its tokens.
        order = torch.argsort(expert_ids.reshape(-1), stable=True)
        counts = torch.bincount(expert_ids.reshape(-1), minlength=len(self._experts)).tolist()
        inputs = x.index_select(0, order // num_chosen)
        outputs = x.new_empty(num_tokens * num_chosen, x.shape[-1])
        begin = 0
        for expert, count in zip(self._experts, counts, strict=True):
            if count:
                outputs[begin : begin + count] = expert(inputs[begin : begin + count])
                begin += count
        by_choice = torch.empty_like(outputs)
        by_choice[order] = outputs
        by_choice = by_choice.view(num_tokens, num_chosen, -1).mul_(weights.unsqueeze(-1))
        total = by_choice[:, 0]
        for choice in range(1, num_chosen):
            total = total + by_choice[:, choice]
        return total if self._shared_expert is None else total + self._shared(x)

    def _route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        probabilities = torch.softmax(self._router(x).float(), dim=-1)
        weights, expert_ids = torch.topk(probabilities, self._experts_per_token, dim=-1)
        if self._normalize_weights:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights.to(x.dtype), expert_ids

    def _shared(self, x: torch.Tensor) -> torch.Tensor:
        assert self._shared_expert is not None
        assert self._shared_gate is not None
        gate = 1.0 / (1.0 + torch.exp(-self._shared_gate(x)))
        return self._shared_expert(x) * gate

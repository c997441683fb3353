"""What the ranks of a group settle between them before they serve."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING

from model_runner.device import choose_device
from model_runner.ranks import Ranks
from scheduler.config import SchedulerConfig

if TYPE_CHECKING:
    from constrained.config import GrammarConfig
    from model_runner.config import RankConfig, RunnerConfig

_OWN = ("endpoint", "heartbeat_interval")
"""Settings that each rank may have its own of: no plan depends on them."""


def meet(
    ranks: RankConfig,
    runner: RunnerConfig,
    config: SchedulerConfig,
    grammar: GrammarConfig | None,
    eos_token_ids: tuple[int, ...],
) -> Ranks:
    """Join the group, once every rank is known to plan the same steps.

    Raises
    ------
    ModelLoadError
        The ranks do not meet, or their settings differ; the message names the setting.
    """
    group = Ranks(ranks, choose_device(runner.device, ranks.local_rank))
    facts = {item.name: str(getattr(config, item.name)) for item in fields(config) if item.name not in _OWN}
    facts |= {
        "eos_token_ids": str(eos_token_ids),
        "grammar_backend": "none" if grammar is None else grammar.backend,
        "json_whitespace": "" if grammar is None else grammar.json_whitespace,
        "json_number_digits": "" if grammar is None else str(grammar.json_number_digits),
        "json_undeclared_properties": "" if grammar is None else grammar.json_undeclared_properties,
        "checks_plans": str(ranks.checks_plans),
    }
    group.compare(facts)
    return group


def shared_seeds(group: Ranks) -> Callable[[], int]:
    """Seeds for requests without one, the same on every rank and unlike those of the last start."""
    generator = random.Random(group.broadcast_bytes(secrets.token_bytes(16) if group.rank == 0 else b""))
    return lambda: generator.getrandbits(63)

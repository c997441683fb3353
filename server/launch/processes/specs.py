"""The processes of a server: one scheduler for each rank, and the HTTP processes."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from model_runner.config import RankConfig, RunnerConfig
from model_runner.threads import choose_num_threads
from server.launch.processes.child import ChildSpec
from server.launch.processes.entries import http_entry, scheduler_entry
from server.launch.ranks.placement import Placement
from server.models import ModelAssets
from server.settings import ServeSettings

_PATIENCE = 4
"""Times the silence after which clients are told, until a hung scheduler is killed."""
_HTTP_SILENCE = 60.0
"""Seconds; nothing that an HTTP process does on its loop takes nearly as long."""
_START_GRACE = 30.0
"""Seconds after the start timeout in which ranks may say themselves what they waited for."""


def rank_specs(
    settings: ServeSettings,
    place: Placement,
    num_devices: int,
    assets: ModelAssets,
    draft_assets: ModelAssets | None,
    meetings: Sequence[socket.socket | None],
    folder: Path,
) -> list[ChildSpec]:
    """The scheduler processes of this supervisor; those of one group live and die together.

    Parameters
    ----------
    num_devices
        CUDA devices of this machine; 0: ranks run on the CPU and share it.
    meetings
        Of each group, the listening socket at which its ranks meet.
    folder
        Of the sockets to the HTTP processes.
    """
    specs: list[ChildSpec] = []
    for group, listener in enumerate(meetings):
        group_name = _group_name(place, group)
        for rank in place.ranks:
            runner = settings.runner_config(assets)
            drafter = None if draft_assets is None else settings.runner_config(draft_assets)
            arguments = (
                settings.log_level,
                settings.log_format,
                settings.scheduler_config(_endpoint(group, folder)),
                _on_its_share(runner, place, num_devices, place.local_rank(group, rank)),
                settings.grammar_config(),
                assets.eos_token_ids,
                assets.tokenizer_json,
                None if drafter is None else _on_its_share(drafter, place, num_devices, place.local_rank(group, rank)),
                _rank_config(settings, place, group, rank, listener),
            )
            specs.append(
                ChildSpec(
                    group_name if place.group_size == 1 else f"{group_name} rank {rank}",
                    "scheduler",
                    scheduler_entry,
                    arguments,
                    silence_limit=_PATIENCE * settings.scheduler_timeout,
                    start_limit=None if place.group_size == 1 else settings.start_timeout + _START_GRACE,
                    group=group_name,
                )
            )
    return specs


def http_specs(
    settings: ServeSettings, place: Placement, assets: ModelAssets, listener: socket.socket, folder: Path
) -> list[ChildSpec]:
    """The HTTP processes, each with a socket to every group."""
    metrics_directory = None
    if settings.http_workers > 1:
        metrics_directory = folder / "metrics"
        metrics_directory.mkdir()
    endpoints = tuple(_endpoint(group, folder) for group in range(place.num_groups))
    config = settings.http_config(endpoints, metrics_directory=metrics_directory)
    return [
        ChildSpec(
            f"http-{i}",
            "http",
            http_entry,
            (config, assets, listener),
            silence_limit=_HTTP_SILENCE,
        )
        for i in range(settings.http_workers)
    ]


def _group_name(place: Placement, group: int) -> str:
    return "scheduler" if place.num_groups == 1 else f"scheduler-{group}"


def _endpoint(group: int, folder: Path) -> str:
    return f"ipc://{folder}/scheduler{group}"


def _rank_config(
    settings: ServeSettings, place: Placement, group: int, rank: int, listener: socket.socket | None
) -> RankConfig | None:
    if place.group_size == 1:
        return None
    return RankConfig(
        rank=rank,
        size=place.group_size,
        local_rank=place.local_rank(group, rank),
        host=place.host,
        port=place.port + group if listener is None else listener.getsockname()[1],
        listener=listener if rank == 0 else None,
        prefix=place.store_prefix,
        timeout=settings.scheduler_timeout,
        start_timeout=settings.start_timeout,
        checks_plans=settings.check_plans,
    )


def _on_its_share(runner: RunnerConfig, place: Placement, num_devices: int, local_rank: int) -> RunnerConfig:
    """The rank's part of what the machine has: a device of its own, or some of the cores and of the memory."""
    if place.ranks_on_machine == 1:
        return runner
    num_threads = runner.num_threads
    if num_threads is None and "OMP_NUM_THREADS" not in os.environ:
        num_threads = max(1, choose_num_threads(None) // place.ranks_on_machine)
    if num_devices:
        # The ranks of a group find their devices themselves.
        device = f"cuda:{local_rank}" if place.group_size == 1 else runner.device
        return replace(runner, num_threads=num_threads, device=device)
    return replace(runner, num_threads=num_threads, memory_fraction=runner.memory_fraction / place.ranks_on_machine)

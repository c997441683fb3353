"""The record of a whole benchmark: what was asked, and every repeat of every workload on every server."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil

from bench.serve.load import Arrivals, ClosedLoop
from bench.serve.metrics import Figures, Objectives, rounded


@dataclass(frozen=True, kw_only=True)
class Run:
    """One workload once on one server."""

    workload: str
    label: str
    repeat: int
    seed: str
    arrivals: str
    figures: Figures
    failures: dict[str, int]
    first_failures: dict[str, str]
    finish_reasons: dict[str, int]
    counted_by: dict[str, int]
    generator_cores: float
    machine_busy: float
    machine_stolen: float


@dataclass(kw_only=True)
class Results:
    """All runs of one invocation."""

    models: dict[str, str]
    """Served model by server label; the first label is compared with the second."""
    objectives: Objectives
    seed: int
    server: dict[str, float] = field(default_factory=dict)
    """Figures of the server this command started itself, if it did."""
    runs: list[Run] = field(default_factory=list)

    @property
    def labels(self) -> list[str]:
        return list(self.models)

    @property
    def workloads(self) -> list[str]:
        """In the order they were run."""
        return list(dict.fromkeys(run.workload for run in self.runs))

    @property
    def num_failed(self) -> int:
        return sum(sum(run.failures.values()) for run in self.runs)

    def of(self, workload: str, label: str) -> list[Run]:
        """The repeats of one workload on one server."""
        return [run for run in self.runs if run.workload == workload and run.label == label]

    def to_json(self) -> dict[str, Any]:
        """Plain data, for a file."""
        return {
            "models": self.models,
            "objectives": asdict(self.objectives),
            "seed": self.seed,
            "machine": {
                "platform": platform.platform(),
                "processor": platform.machine(),
                "cores": psutil.cpu_count(),
                "memory_bytes": psutil.virtual_memory().total,
                "python": platform.python_version(),
            },
            "server": self.server,
            "runs": [rounded(asdict(run)) | {"figures": rounded(run.figures)} for run in self.runs],
        }


def describe(arrivals: Arrivals) -> str:
    """Arrivals as they stand in tables."""
    if isinstance(arrivals, ClosedLoop):
        return f"{arrivals.num_clients} clients" if arrivals.num_clients > 1 else "1 client"
    return f"Poisson {arrivals.rate:g}/s"

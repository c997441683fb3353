"""Compute threads of a process, chosen before torch is imported. Free of torch."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

import psutil

_MAX_THREADS = 64
"""More threads than this only lengthen the barriers of a decode step."""


def choose_num_threads(num_threads: int | None) -> int:
    """
    Threads for the compute of one process.

    Parameters
    ----------
    num_threads : int or None
        ``None``: one per physical core that this process may run on, as two threads of one core share its vector
        units. The HTTP process gets no core of its own: it is busy for a fraction of the time, and idle compute
        threads sleep (see :func:`configure_thread_environment`), so that it finds one.

    Raises
    ------
    ValueError
        If the number is below one.
    """
    if num_threads is not None:
        if num_threads < 1:
            raise ValueError(f"the number of threads is {num_threads}; it must be at least 1")
        return num_threads
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or usable
    quota = _cgroup_cpu_quota()
    return max(1, min(usable, physical, _MAX_THREADS, usable if quota is None else int(quota)))


def configure_thread_environment(num_threads: int | None, environment: MutableMapping[str, str] | None = None) -> int:
    """
    Set what OpenMP reads when torch is imported; to be called before that, in the process that will compute.

    Threads wait passively. By default OpenMP's threads spin at each of the several hundred barriers of a step. As
    soon as another process wants a core (the HTTP process does), a spinning thread keeps it from the very thread that
    all wait for. Measured with SmolLM2-135M in bfloat16 on two cores, mean milliseconds of a decode step:

    ==================================  =====  =======
    .                                   1 row  16 rows
    ==================================  =====  =======
    idle machine, spinning (default)       12       25
    other light load, spinning             17      119
    other light load, passive              23       42
    a process 30 % busy, spinning         538      618
    a process 30 % busy, passive           26       50
    a process 30 % busy, one thread        55      171
    ==================================  =====  =======

    So waking threads costs about ten milliseconds a step on an idle machine, and saves a collapse on any other. Short
    spinning (``GOMP_SPINCOUNT`` of 100 to 20,000) was worse than none in the busy case.

    A variable that is set already is left as it is; ``OMP_NUM_THREADS`` yields to an explicit ``num_threads`` only.

    Parameters
    ----------
    num_threads : int or None
        As in :func:`choose_num_threads`.
    environment : mapping, optional
        ``os.environ`` unless given.

    Returns
    -------
    int
        The number of threads chosen.
    """
    environment = os.environ if environment is None else environment
    preset = environment.get("OMP_NUM_THREADS", "")
    if num_threads is None and preset.isdigit() and int(preset) > 0:
        num_threads = int(preset)
    chosen = choose_num_threads(num_threads)
    environment["OMP_NUM_THREADS"] = str(chosen)
    environment.setdefault("OMP_WAIT_POLICY", "passive")
    # Intel's runtime, where it is preloaded, has a clock of its own for how long a thread spins.
    environment.setdefault("KMP_BLOCKTIME", "0")
    return chosen


def _cgroup_cpu_quota() -> float | None:
    """CPUs that the control group may use on average; ``None`` where it has no limit."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None

"""How many CUDA devices there are for the ranks, asked without torch, which the supervisor never loads."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping

from server.launch.errors import StartError
from server.launch.ranks.placement import Placement
from server.settings import ServeSettings


def count_devices(settings: ServeSettings, place: Placement, environment: Mapping[str, str]) -> int:
    """CUDA devices for the ranks of this machine; 0: they run on the CPU.

    Raises
    ------
    StartError
        There are fewer devices than ranks.
    """
    if settings.device == "cpu":
        return 0
    count = cuda_device_count(environment)
    last = place.local_rank(place.num_groups - 1, place.ranks[-1])
    needed = max(place.ranks_on_machine, last + 1)
    # One rank may say itself what is wrong with its device.
    if needed > max(count, 1) and (count or settings.device != "auto"):
        raise StartError(
            f"{needed} ranks on this machine need as many CUDA devices, and there are {count} (CUDA_VISIBLE_DEVICES "
            "counts); choose smaller --tp and --dp, or --device cpu"
        )
    return count


def cuda_device_count(environment: Mapping[str, str]) -> int:
    """
    CUDA devices that the driver has and ``CUDA_VISIBLE_DEVICES`` leaves; 0 without a driver.

    A driver that cannot be asked counts as none: the rank that loads the model then says what is wrong.
    """
    present = _driver_device_count()
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    named = [name.strip() for name in visible.split(",")]
    usable = 0
    for name in named:  # CUDA ignores everything behind the first entry that is no device
        if not name or name.startswith("-"):
            break
        usable += 1
    # One device may be cut into several (MIG): then the names are all that can be counted.
    return usable if any(name.startswith("MIG") for name in named) and present else min(usable, present)


def _driver_device_count() -> int:
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL("libnvidia-ml.so.1")
        count = ctypes.c_uint(0)
        if library.nvmlInit_v2() == 0:
            try:
                if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0:
                    return count.value
            finally:
                library.nvmlShutdown()
    return 0

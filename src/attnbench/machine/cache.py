"""Size of the cache that a cold measurement must flush."""

from __future__ import annotations

import os
import re
from pathlib import Path

from attnbench.machine.device import Device

CPU_FOLDER = Path("/sys/devices/system/cpu")
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def l2_bytes(device: Device) -> int | None:
    """Return the bytes of the L2 cache of a GPU, or of the last-level caches of a CPU.

    Args:
        device: device under test.

    Returns:
        The size; None if the system does not report it.
    """
    if not device.on_gpu:
        return last_level_bytes(CPU_FOLDER)
    import torch

    size = getattr(torch.cuda.get_device_properties(str(device)), "L2_cache_size", 0)
    return int(size) or None


def last_level_bytes(folder: Path) -> int | None:
    """Return the sum of the distinct last-level caches of the CPUs that this process may use, from sysfs."""
    caches: dict[str, tuple[int, int]] = {}
    for cpu in _usable_cpus():
        levels = [_cache(index) for index in (folder / f"cpu{cpu}" / "cache").glob("index*")]
        found = [cache for cache in levels if cache]
        if found:
            level, size, shared = max(found)
            caches[shared] = (level, size)
    top = max((level for level, _ in caches.values()), default=0)
    return sum(size for level, size in caches.values() if level == top) or None


def _cache(index: Path) -> tuple[int, int, str] | None:
    """Return level, bytes and the CPUs that share it; None for an instruction cache or if a file is missing."""
    try:
        kind, level, size, shared = (
            (index / name).read_text().strip() for name in ("type", "level", "size", "shared_cpu_list")
        )
    except OSError:
        return None
    match = re.fullmatch(r"(\d+)([KMG]?)", size)
    if kind == "Instruction" or not match or not level.isdecimal():
        return None
    return int(level), int(match[1]) * UNITS[match[2]], shared


def _usable_cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))

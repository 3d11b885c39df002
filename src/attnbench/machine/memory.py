"""The memory of the host that a process can still have.

The system's *free* memory is less: it leaves out the file cache, which is given up for whoever needs it.
"""

from __future__ import annotations

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def available_memory() -> int | None:
    """Return the bytes available now, by the machine or by the container's limit, whichever is less."""
    limits = [limit for limit in (_memory_available(), _cgroup_room()) if limit is not None]
    return min(limits, default=None)


def _memory_available() -> int | None:
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _cgroup_room() -> int | None:
    for folder, limit, used in (
        (CGROUP, "memory.max", "memory.current"),
        (CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            room = int((folder / limit).read_text()) - int((folder / used).read_text())
            return max(0, room + _reclaimed(folder / "memory.stat"))
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
    return None


def _reclaimed(stat: Path) -> int:
    """Return the bytes of a container's file cache that its use includes and that are given up first."""
    try:
        found = dict(line.split() for line in stat.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(found.get("total_inactive_file", found.get("inactive_file", 0)))

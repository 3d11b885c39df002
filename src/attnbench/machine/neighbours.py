"""Detect other processes on GPU and CPU, which disturb every measured time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from attnbench.machine.device import Device
from attnbench.machine.nvml import GpuProcess, open_gpu


class Neighbours:
    """Counts other processes on the GPU, starting before this process creates its own CUDA context.

    Processes that this one has started, such as ranks, are not others.  In a container the driver may number processes
    differently, so this process and those may look like others.  Processes present before our context are certainly
    others; of those that came later, as many may be ours as there are of us.

    Args:
        device: device under test.  Create the object before this process creates its CUDA context.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._before = {process.pid for process in self._others()}

    def words(self) -> str | None:
        """Return the note for a time measured just now; None if no other process is known."""
        others = self._others()
        if not others:
            return None
        started = _started()
        old = [process for process in others if process.pid in self._before]
        new = [process for process in others if process.pid not in self._before]
        strange = [process for process in new if process.pid not in started]
        # If the driver uses the same numbers, this process was excluded by its own, and all strangers count. Where that
        # is not known, the count may be too low, never too high.
        count = len(old) + (len(strange) if len(strange) < len(new) else max(0, len(new) - 1 - len(started)))
        if not count:
            return None
        sizes = [process.memory_mb for process in old]
        known = "" if not sizes or None in sizes else f" holding {sum(size or 0.0 for size in sizes):.0f} MiB"
        who = "another process was" if count == 1 else f"{count} other processes were"
        return f"{who} on the card{known}: times may be theirs too"

    def _others(self) -> tuple[GpuProcess, ...]:
        gpu = None if not self._device.on_gpu else open_gpu(self._device)
        return () if gpu is None else gpu.other_processes() or ()


def _started() -> set[int]:
    """Return the processes that this one has started, and those that they have."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
    found, more = set[int](), {os.getpid()}
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - found
        found |= more
    return found


class OtherLoad:
    """CPU time of other processes, from the counters of the system and of this process.

    Args:
        read: returns seconds so far of all processes, of this one with its children, and of wall time; None if the
            system does not report them.
    """

    LEAST_S = 0.5
    "Counters have ticks of 10 ms: a call within this time returns the previous answer."

    def __init__(self, read: Callable[[], tuple[float, float, float] | None] | None = None) -> None:
        self._read = read or _cpu_seconds
        self._last = self._read()
        self._cores: float | None = None

    def cores(self) -> float | None:
        """Return the cores that others used since the last call; None if unknown."""
        now = self._read()
        if now is None or self._last is None:
            return None
        everyone, own, elapsed = (new - old for new, old in zip(now, self._last, strict=True))
        if elapsed >= self.LEAST_S:
            self._last, self._cores = now, round(max(0.0, everyone - own) / elapsed, 2)
        return self._cores


def _cpu_seconds() -> tuple[float, float, float] | None:
    try:
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    user, nice, system, _idle, _waiting, *interrupts = fields
    own = os.times()
    return ((user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK"), sum(own[:4]), time.monotonic())

"""Whether card and CPU were ours alone: other processes on them change every time that is taken."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from attnbench.machine.device import Device
from attnbench.machine.nvml import GpuProcess, open_gpu


class Neighbours:
    """Counts other processes on the card, from before this one opened its own context.

    In a container the driver numbers processes otherwise than we see ourselves, so our own may look
    like another.  Whoever was there before our context is certainly somebody else; of those who came
    after it, one may be ourselves.

    Args:
        device: what is measured on.  Made before the CUDA context of this process is.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._before = {process.pid for process in self._others()}

    def words(self) -> str | None:
        """What to note on a time taken just now; None where nobody else is known to be there."""
        others = self._others()
        old = [process for process in others if process.pid in self._before]
        new = [process for process in others if process.pid not in self._before]
        # Our own process is left out by its number where that is the driver's too: then every new one counts.
        # Where it is not, the count is one too small at worst, never too large.
        count = len(old) + max(0, len(new) - 1)
        if not count:
            return None
        sizes = [process.memory_mb for process in old]
        known = "" if not sizes or None in sizes else f" holding {sum(size or 0.0 for size in sizes):.0f} MiB"
        who = "another process was" if count == 1 else f"{count} other processes were"
        return f"{who} on the card{known}: times may be theirs too"

    def _others(self) -> tuple[GpuProcess, ...]:
        gpu = None if not self._device.on_gpu else open_gpu(self._device)
        return () if gpu is None else gpu.other_processes() or ()


class OtherLoad:
    """CPU time of other processes, from the counters of the system and of this process.

    Args:
        read: seconds so far: of all processes, of this one with its children, and by the clock; None where the system
            does not tell.
    """

    LEAST_S = 0.5
    "Counters have ticks of 10 ms: what is asked again before that has the last answer."

    def __init__(self, read: Callable[[], tuple[float, float, float] | None] | None = None) -> None:
        self._read = read or _cpu_seconds
        self._last = self._read()
        self._cores: float | None = None

    def cores(self) -> float | None:
        """Cores that others used since this was last asked; None where it is not known."""
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

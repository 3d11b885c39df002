"""Whether the card was ours alone: other processes on it change every time that is taken."""

from __future__ import annotations

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

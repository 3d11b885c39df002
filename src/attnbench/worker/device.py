"""The device of a worker between backends: what it holds, whether it still answers, and clean again."""

from __future__ import annotations

import gc
import sys

from attnbench.machine.device import Device
from attnbench.measure.stage import synchronize


class ContextLost(Exception):
    """The GPU context answers nothing any more; the process must end."""

    def __init__(self, index: int, phase: str, reason: str) -> None:
        super().__init__(reason)
        self.index, self.phase = index, phase


class Stuck(ContextLost):
    """A backend changed what all share and what cannot be put back: the others need another process."""


def raise_if_lost(device: Device, index: int, phase: str, reason: str) -> None:
    """See whether the device survived an exception.

    Args:
        device: what is measured on.
        index: whom the activity page names.
        phase: what it was doing.
        reason: words of the exception.

    Raises:
        ContextLost: a CUDA error that sticks makes every later call fail; only a new process helps.
    """
    try:
        synchronize(device)
    except RuntimeError:
        raise ContextLost(index, phase, reason) from None


def allocated(device: Device) -> int:
    """Bytes the allocator has handed out; 0 on a CPU, which has none."""
    if not device.on_gpu:
        return 0
    import torch

    return int(torch.cuda.memory_allocated(str(device)))


def release(device: Device) -> None:
    """Collect what nobody holds and give the allocator's reserve back."""
    gc.collect()
    if device.on_gpu:
        import torch

        torch.cuda.empty_cache()


def tidy(device: Device) -> None:
    """Leave nothing of one case to the next."""
    if "torch._dynamo" in sys.modules:
        # Each case compiles anew: without this the recompile limit turns later cases eager.
        sys.modules["torch._dynamo"].reset()
    release(device)

"""The device of a worker between backends: its allocated memory, whether it still works, and its cleanup."""

from __future__ import annotations

import gc
import sys

from attnbench.machine.device import Device
from attnbench.measure.stage import synchronize


class ContextLost(Exception):
    """The GPU context fails every call; the process must end."""

    def __init__(self, index: int, phase: str, reason: str) -> None:
        super().__init__(reason)
        self.index, self.phase = index, phase


class Stuck(ContextLost):
    """A backend changed a shared setting that cannot be restored: the other backends need another process."""


def raise_if_lost(device: Device, index: int, phase: str, reason: str) -> None:
    """Check that the device survived an exception.

    Args:
        device: what is measured on.
        index: of the backend on the activity page.
        phase: of that backend.
        reason: message of the exception.

    Raises:
        ContextLost: a sticky CUDA error makes every later call fail; only a new process helps.
    """
    try:
        synchronize(device)
    except RuntimeError:
        raise ContextLost(index, phase, reason) from None


def allocated(device: Device) -> int:
    """Return the bytes that the allocator has handed out; 0 on a CPU, which has no such allocator."""
    if not device.on_gpu:
        return 0
    import torch

    return int(torch.cuda.memory_allocated(str(device)))


def release(device: Device) -> None:
    """Collect garbage and return the allocator's reserve to the device."""
    gc.collect()
    if device.on_gpu:
        import torch

        torch.cuda.empty_cache()


def tidy(device: Device) -> None:
    """Remove the state that one case would leave to the next."""
    if "torch._dynamo" in sys.modules:
        # Each case compiles again: without this, dynamo's recompile limit makes later cases run eagerly.
        sys.modules["torch._dynamo"].reset()
    release(device)

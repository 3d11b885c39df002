"""Peak memory of a call, measured alone: the most that the call itself has allocated at one time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnbench.machine.device import Device


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes above those allocated when the call began."""

    allocated: int
    reserved: int | None
    "by the caching allocator, including its unused blocks; None on a CPU, which has no such allocator"


def peak(call: Callable[[], Any], device: Device) -> Peak:
    """Measure the allocator's peak during one call.

    On a GPU the figures are the caching allocator's own statistics.  On a CPU they are the running sum of the
    allocations that torch's profiler sees; memory that a library allocates by itself is not included.
    """
    return _cpu_peak(call) if not device.on_gpu else _cuda_peak(call, device)


def _cuda_peak(call: Callable[[], Any], device: Device) -> Peak:
    import torch

    place = str(device)
    torch.cuda.synchronize(place)
    torch.cuda.empty_cache()  # so that the reserved figure is this call's and not an earlier backend's
    torch.cuda.reset_peak_memory_stats(place)
    before, held = torch.cuda.memory_allocated(place), torch.cuda.memory_reserved(place)
    call()
    torch.cuda.synchronize(place)
    most, reserved = (read(place) for read in (torch.cuda.max_memory_allocated, torch.cuda.max_memory_reserved))
    # Earlier tensors may occupy only part of their blocks; the call can use the rest, which does not count as its own.
    return Peak(most - before, max(most - before, reserved - held))


def _cpu_peak(call: Callable[[], Any]) -> Peak:
    # The recorder below torch.profiler.profile: that one imports torch's compiler, half a worker's start-up.
    from torch.autograd.profiler import profile

    with profile(profile_memory=True, acc_events=True) as profiler:
        call()
    allocated = most = 0
    events = [e for e in profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        allocated += event.nbytes()
        most = max(most, allocated)
    return Peak(most, None)

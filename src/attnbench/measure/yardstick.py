"""Yardsticks: known pieces of work that every group times in its rounds, beside the backends.

When a yardstick takes longer, the machine has changed, not the code: `verdict` uses them to separate the two.  There
are two, because machines change in two ways: a matmul follows the clock of the cores, a copy follows the memory.

Their sizes are the same for every case, because two runs can only be compared by the same work.  So is the type: fp16
on a GPU and fp32 on a CPU are fast on every card and processor, and no switch of the process (TF32) affects them.  A
call takes 20-100 µs: long compared with the resolution of every timer, short compared with a group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from attnbench.machine.device import Device
from attnbench.measure.sampling import Timing
from attnbench.measure.stage import synchronize
from attnbench.measure.subject import Subject
from attnbench.record import Yardstick

WHAT, MATMUL, COPY = "yardstick", "matmul", "copy"
SIDE = {"cpu": 128, "cuda": 2048}
"""Rows and columns of the square matrices."""
COPIED = {"cpu": 2 * 2**20, "cuda": 64 * 2**20}
"""Bytes of the buffer that is copied: more than the L2 of a GPU, or the private caches of a CPU core, can hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownWork:
    """A yardstick that is ready to be timed."""

    subject: Subject
    flops: int
    "of one call"
    bytes: int
    "read and written by one call, each operand counted once"


def yardsticks(device: Device) -> tuple[KnownWork, ...]:
    """Return the yardsticks of a device, each called once; none where a GPU has no room for their operands (152 MiB).

    Args:
        device: where the group runs.
    """
    import torch

    try:
        found = _made(device)
        for one in found:
            one.subject.call()
        synchronize(device)
    except torch.OutOfMemoryError:
        return ()
    return found


def _made(device: Device) -> tuple[KnownWork, ...]:
    import torch

    kind = device.kind
    dtype = torch.float16 if kind == "cuda" else torch.float32
    generator = torch.Generator(device=str(device)).manual_seed(0)  # leaves the process's random state unchanged
    side, size = SIDE[kind], dtype.itemsize
    a, b, out = (torch.randn((side, side), device=str(device), dtype=dtype, generator=generator) for _ in range(3))
    source = torch.randn(COPIED[kind] // 4, device=str(device), generator=generator)
    target = torch.empty_like(source)
    # Bound here, so that a backend that replaces torch.matmul does not change the yardstick.
    return (
        KnownWork(
            subject=Subject(name=f"{WHAT} {MATMUL}", call=partial(torch.matmul, a, b, out=out)),
            flops=2 * side**3,
            bytes=3 * side**2 * size,
        ),
        KnownWork(
            subject=Subject(name=f"{WHAT} {COPY}", call=partial(target.copy_, source)), flops=0, bytes=2 * COPIED[kind]
        ),
    )


def measured(known: Sequence[KnownWork], timings: Sequence[Timing]) -> dict[str, Yardstick]:
    """Return what a record keeps of the sampled yardsticks, by name.

    Args:
        known: from `yardsticks`.
        timings: `GroupTiming.yardsticks`; without those that the timer could not time.
    """
    by_name = {timing.name: timing for timing in timings if timing.samples_ms}
    return {
        one.subject.name.removeprefix(f"{WHAT} "): _block(one, by_name[one.subject.name])
        for one in known
        if one.subject.name in by_name
    }


def matmul_tflops(found: Mapping[str, Yardstick]) -> float | None:
    """Return the TFLOP/s of a record's fastest matmul sample; None where there is none.

    A ceiling is a maximum, so the median is not used.  A matmul of this size does not fill a machine of many
    cores: a kernel with more work may exceed it there.
    """
    shortest = min(found[MATMUL].samples_ms, default=0.0) if MATMUL in found else 0.0
    return found[MATMUL].flops / shortest / 1e9 if shortest > 0.0 else None


def _block(one: KnownWork, timing: Timing) -> Yardstick:
    clocks = timing.sm_mhz if any(clock is not None and math.isfinite(clock) for clock in timing.sm_mhz) else ()
    return Yardstick(
        flops=one.flops,
        bytes=one.bytes,
        samples_ms=tuple(timing.samples_ms),
        rounds=tuple(timing.rounds),
        sm_mhz=tuple(clocks),
    )

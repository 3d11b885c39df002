"""In a worker: an H200 that is not there.  Put this folder first on the search path of the parent.

Tensors stay on the CPU; what torch, the stage and the choice of timers would ask of the card is
answered here, and NVML by the fake pynvml.  The times come from simulated_timers.py.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

MIB = 2**20
PEAK_MIB = 48
"""What every call takes at most, beside what was there before."""


def replace_torch() -> None:
    import torch

    cuda: Any = torch.cuda
    properties = SimpleNamespace(
        name="NVIDIA H200",
        total_memory=150_110_011_392,
        multi_processor_count=132,
        major=9,
        minor=0,
        L2_cache_size=60 * MIB,
        clock_rate=1_980_000,
        uuid="11111111-aaaa-bbbb-cccc-000000000000",
    )
    for name, answer in {
        "get_device_properties": properties,
        "get_device_name": properties.name,
        "get_device_capability": (9, 0),
        "set_device": None,
        "synchronize": None,
        "empty_cache": None,
        "reset_peak_memory_stats": None,
        "memory_allocated": 0,
        "max_memory_allocated": PEAK_MIB * MIB,
        "max_memory_reserved": 64 * MIB,
    }.items():
        setattr(cuda, name, lambda *args, answer=answer: answer)


def replace_card() -> None:
    from attnbench.check import inspection
    from attnbench.machine import ceilings
    from attnbench.machine.device import CPU, Device
    from attnbench.measure import stage, timer, yardstick
    from attnbench.workloads.attention import inputs

    class Simulated(stage.Stage):
        kind = "cuda"

        def __init__(self, device: Device, *, l2: str = "auto") -> None:
            super().__init__()
            self.device, self.l2 = device, "cold" if l2 == "auto" else l2

        def ready(self, subject: Any) -> None:
            if subject.reset:
                subject.reset()

        def mark(self) -> None:
            pass

        def sm_mhz(self, count: int) -> list[float | None]:
            return [1980.0] * count

    class TimerOnly(inspection.Inspection):
        """Compares times of the timer alone: the host takes longer than the table says, and looks guilty beside it."""

        def __init__(self, *args: Any, **terms: Any) -> None:
            super().__init__(*args, **terms)
            self.in_ranks = True

    inspection.Inspection = TimerOnly  # type: ignore[misc]
    ceilings.ceilings = lambda device, dtype: {"copy_gbps": 4270.0, "matmul_tflops": 51.0}
    work = yardstick._made
    yardstick._made = lambda device: work(CPU)
    stage.CudaStage = Simulated  # type: ignore[misc,assignment]
    made, known = inputs.make_inputs, timer.all_timers
    inputs.make_inputs = lambda case, *, seed, kind, device: made(case, seed=seed, kind=kind, device="cpu")
    timer.all_timers = lambda: {
        name: one for name, one in known().items() if name == "wall" or name.startswith("simulated")
    }
    timer.AUTO["cuda"] = ("simulated",)


if "ATTNBENCH_PARENT" in os.environ:
    replace_torch()
    replace_card()

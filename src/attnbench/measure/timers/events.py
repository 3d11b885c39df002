"""CUDA events behind a backlog: the device's time between two events in the stream.

An event pair adds 3-4 µs to a short kernel (its own processing and the gap to the kernel).  The backlog hides
the host's launch path, which would add up to 25 µs more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from attnbench.errors import Unavailable
from attnbench.machine.device import Device
from attnbench.measure.stage import Stage
from attnbench.measure.subject import Subject
from attnbench.measure.timer import Reading, Timer


class Events(Timer):
    """Event pairs, queued while a spin kernel blocks the device."""

    name = "events"
    title = "CUDA events behind a backlog"
    devices = ("cuda",)
    tick_ms = 5e-4

    def probe(self, device: Device) -> None:
        """Require a CUDA device."""
        super().probe(device)
        import torch

        if not torch.cuda.is_available():
            raise Unavailable("events: device=cuda is not there; a CUDA GPU and a CUDA build of torch")

    def measure(
        self, stage: Stage, batch: Sequence[tuple[int, Subject]], lead_s: float, announce: Callable[[int, str], None]
    ) -> list[Reading]:
        """Queue the whole batch, then read the events."""
        import torch

        pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in batch]
        hosts, begun = [], time.perf_counter()
        stage.begin(lead_s)
        for (index, subject), (start, end) in zip(batch, pairs, strict=True):
            announce(index, "sample")
            stage.ready(subject)
            stage.mark()
            start.record()
            called = time.perf_counter_ns()
            subject.call()
            hosts.append((time.perf_counter_ns() - called) / 1e6)
            end.record()
            stage.mark()
        stage.end()
        first = pairs[0][0]
        return [
            Reading(
                start.elapsed_time(end),
                at_s=begun + first.elapsed_time(start) / 1e3 if start is not first else begun,
                sm_mhz=clock,
                host_ms=host,
            )
            for (start, end), clock, host in zip(pairs, stage.sm_mhz(len(batch)), hosts, strict=True)
        ]

"""The kernel's own time, for kernels that time themselves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from attnbench.measure.stage import Stage
from attnbench.measure.subject import Subject
from attnbench.measure.timer import Reading, Timer


class Reported(Timer):
    """`Launch.reported_ms` of the call just made; the harness does not verify it."""

    name = "reported"
    title = "the kernel's own figure"
    devices = ("cpu", "cuda")
    inspects = False

    def accepts(self, subject: Subject) -> str | None:
        """Accept subjects that report a time."""
        return None if subject.reported_ms else "the launch reports no time of its own"

    def measure(
        self, stage: Stage, batch: Sequence[tuple[int, Subject]], lead_s: float, announce: Callable[[int, str], None]
    ) -> list[Reading]:
        """Call, then read the reported time."""
        readings = []
        stage.begin(0.0)
        for index, subject in batch:
            announce(index, "sample")
            stage.ready(subject)
            stage.mark()
            at = time.perf_counter()
            subject.call()
            stage.mark()
            if subject.reported_ms is None:
                raise ValueError(f"{subject.name} reports no time; the sampler asks `accepts` first")
            ms = subject.reported_ms()
            if not ms > 0 or math.isinf(ms):
                raise ValueError(f"{subject.name} reported {ms} ms; a positive number")
            readings.append(Reading(ms, at_s=at))
        stage.end()
        for reading, clock in zip(readings, stage.sm_mhz(len(batch)), strict=True):
            reading.sm_mhz = clock
        return readings

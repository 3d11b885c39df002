"""Wall-clock time of the call: the only honest timer of a CPU; on a GPU it includes every launch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from attnbench.measure.stage import Stage
from attnbench.measure.subject import Subject
from attnbench.measure.timer import Reading, Timer


class Wall(Timer):
    """`time.perf_counter_ns` around the call; on a GPU around the call and a synchronisation."""

    name = "wall"
    title = "CPU clock around the call (and a synchronisation on a GPU)"
    devices = ("cpu", "cuda")
    tick_ms = 1e-6
    device_time = False

    def measure(
        self, stage: Stage, batch: Sequence[tuple[int, Subject]], lead_s: float, announce: Callable[[int, str], None]
    ) -> list[Reading]:
        """Call by call; nothing is queued."""
        readings = []
        stage.begin(0.0)
        for index, subject in batch:
            announce(index, "sample")
            stage.ready(subject)
            stage.mark()
            stage.end()
            started = time.perf_counter_ns()
            subject.call()
            returned = time.perf_counter_ns()
            stage.end()
            ended = time.perf_counter_ns()
            stage.mark()
            readings.append(
                Reading((ended - started) / 1e6, at_s=started / 1e9, host_ms=(returned - started) / 1e6)
            )
        stage.end()
        for reading, clock in zip(readings, stage.sm_mhz(len(batch)), strict=True):
            reading.sm_mhz = clock
        return readings

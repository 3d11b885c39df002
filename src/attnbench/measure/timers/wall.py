"""Wall-clock time of the call: the only honest timer of a CPU; on a GPU it includes every launch.

A sample has the reading of the clock and the call through Python in it, some 0.25 us.  They are measured once
a stage, by empty calls, and said where they matter; samples stay as they were read.  Taking them off would make
samples of short calls negative now and then, and what a short call shares with the reading is not known.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from attnbench.measure.stage import Stage
from attnbench.measure.subject import Subject
from attnbench.measure.timer import Reading, Timer

EMPTY_CALLS = 501
_OWN = "an empty call by the wall timer"


class Wall(Timer):
    """`time.perf_counter_ns` around the call; on a GPU around the call and a synchronisation."""

    name = "wall"
    title = "CPU clock around the call (and a synchronisation on a GPU)"
    devices = ("cpu", "cuda")
    tick_ms = 1e-6
    device_time = False

    def own_ms(self, stage: Stage) -> float:
        """Median reading of an empty call on this machine; 0 on a GPU, where the synchronisation is meant to be in."""
        if stage.kind != "cpu":
            return 0.0
        if _OWN not in stage.kept:
            stage.kept[_OWN] = statistics.median(_timed(_nothing, stage)[1] for _ in range(EMPTY_CALLS)) / 1e6
        return float(stage.kept[_OWN])

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
            started, whole, call = _timed(subject.call, stage)
            stage.mark()
            readings.append(Reading(whole / 1e6, at_s=started / 1e9, host_ms=call / 1e6))
        stage.end()
        for reading, clock in zip(readings, stage.sm_mhz(len(batch)), strict=True):
            reading.sm_mhz = clock
        return readings


def _timed(call: Callable[[], object], stage: Stage) -> tuple[int, int, int]:
    """When the call began, how long it and the device took, and how long it alone, in ns."""
    started = time.perf_counter_ns()
    call()
    returned = time.perf_counter_ns()
    stage.end()
    ended = time.perf_counter_ns()
    return started, ended - started, returned - started


def _nothing() -> None:
    pass

"""Wall-clock time of the call: the only honest timer on a CPU; on a GPU it includes every launch.

A sample includes reading the clock and calling through Python, some 0.25 us.  This overhead is measured once per
stage, by empty calls, and noted where it matters.  It is not subtracted: samples of short calls would sometimes be
negative, and the overlap of a short call with the clock reading is unknown.
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
        """Return the median reading of an empty call on this machine; 0 on a GPU, where the synchronisation counts."""
        if stage.kind != "cpu":
            return 0.0
        if _OWN not in stage.kept:
            stage.kept[_OWN] = statistics.median(_timed(_nothing, stage)[1] for _ in range(EMPTY_CALLS)) / 1e6
        return float(stage.kept[_OWN])

    def measure(
        self, stage: Stage, batch: Sequence[tuple[int, Subject]], lead_s: float, announce: Callable[[int, str], None]
    ) -> list[Reading]:
        """Time call by call; nothing is queued."""
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
    """Return when the call began, how long it and the device took, and how long the call alone took, in ns."""
    started = time.perf_counter_ns()
    call()
    returned = time.perf_counter_ns()
    stage.end()
    ended = time.perf_counter_ns()
    return started, ended - started, returned - started


def _nothing() -> None:
    pass

"""Conversion of samples to the time block of a record."""

from __future__ import annotations

from typing import Any

from attnbench.measure.sampling import Timing
from attnbench.record import Time
from attnbench.stats.summary import summarise


def to_time(timing: Timing, setup_ms: float | None = None, first_call_ms: float | None = None) -> Time:
    """Return a `Time` with all statistics of the timing's samples."""
    statistics: dict[str, Any] = summarise(timing.samples_ms, tick=timing.tick_ms).in_ms()
    return Time(
        timer=timing.timer,
        l2=timing.l2,
        regime=timing.regime,
        stopped_by=timing.stopped_by,
        tick_ms=timing.tick_ms or None,
        busy_ms=timing.busy_ms,
        host_ms=timing.host_ms,
        setup_ms=setup_ms,
        first_call_ms=first_call_ms,
        samples_ms=tuple(timing.samples_ms),
        rounds=tuple(timing.rounds),
        at_s=tuple(timing.at_s),
        sm_mhz=tuple(timing.sm_mhz),
        **statistics,
    )

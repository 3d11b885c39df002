"""Timers that draw their times from a table (give this file in ATTNBENCH_TIMERS)."""

from __future__ import annotations

from attnbench.measure.timer import Reading, Timer

TRUE_MS = {
    "reference": 0.040,
    "twice-as-fast": 0.020,
    "same": 0.040,
    "slower": 0.050,
    "long-on-host": 0.020,
    "long": 80.0,
    "longer": 100.0,
    "yardstick matmul": 0.030,
    "yardstick copy": 0.050,
}
SWING = (0.0, 0.004, -0.004, 0.008, -0.008)
"""Of all subjects in one round: ratios are exact."""
RESTLESS = "longer"
"""Has a swing of its own that never repeats: no ratio is ever known to the last digit."""


def true_ms(name: str, number: int) -> float:
    """The so manieth time of a subject, warm-up included."""
    swing = 0.016 * (0.618034 * number % 1 - 0.5) if name == RESTLESS else SWING[number % len(SWING)]
    return round(TRUE_MS[name] * (1 + swing), 7)


class Simulated(Timer):
    """What the table says."""

    name = "simulated"
    title = "drawn from a table"
    devices = ("cuda",)
    factor = 1.0

    def measure(self, stage, batch, lead_s, announce):
        taken = stage.kept.setdefault("taken", {})
        readings = []
        stage.begin(lead_s)
        # Inspections come at any moment: they take none of the table's times.
        recorded = all(subject.callable_untimed for _, subject in batch)
        for index, subject in batch:
            announce(index, "sample")
            stage.ready(subject)
            subject.call()
            number = max(0, taken.get(subject.name, -1) + recorded)
            taken[subject.name] = number
            ms = round(self.factor * true_ms(subject.name, number), 7)
            readings.append(
                Reading(
                    ms, busy_ms=ms / 2, host_ms=0.004, kernels=("first_half", "second_half"), kernel_ms=(ms / 4, ms / 4)
                )
            )
        stage.end()
        for reading, mhz in zip(readings, stage.sm_mhz(len(readings)), strict=True):
            reading.sm_mhz = mhz
        return readings


class Late(Simulated):
    """A tenth more than the table says."""

    name = "simulated-late"
    title = "a tenth too long"
    factor = 1.1

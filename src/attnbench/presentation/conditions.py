"""Under what conditions times were taken: what stands above a table, and what may not be mixed in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.record import Record, Run
from attnbench.store.environments import device_name, environment_of, gpu_name


@dataclass(frozen=True, slots=True)
class Conditions:
    """Machine, timer, cache state, regime and clock of some records."""

    device: str | None
    gpu: str | None
    "what tables call it, where the run has several and these records are of one"
    timer: str | None
    l2: str | None
    regime: str | None
    clock_mhz: tuple[float, float] | None
    "lowest and highest SM clock seen while sampling; None where it was not read"

    @property
    def key(self) -> tuple[str | None, ...]:
        """What may not differ within one table, beside the GPU, which has a column where there are several."""
        return (self.device, self.timer, self.l2, self.regime)

    def words(self) -> list[str]:
        """GPU of several, timer, cache, regime and clock, in words; what is not known is left out."""
        words = [] if self.gpu is None else [f"GPU {self.gpu}"]
        words += [] if self.timer is None else [f"timer {self.timer}"]
        # On a CPU the regime is "cpu" and no clock or cache state was set.
        if self.regime is not None and self.regime != "cpu":
            words += [] if self.l2 is None else [f"{self.l2} L2"]
            words.append(self.regime)
        if self.clock_mhz is not None:
            low, high = (f"{clock:.0f}" for clock in self.clock_mhz)
            words.append(f"SM {low} MHz" if low == high else f"SM {low}-{high} MHz")
        return words


def conditions_of(run: Run, records: Sequence[Record]) -> Conditions:
    """Conditions of records that share them; the clock is that of all their samples."""
    first = records[0]
    clocks = [clock for record in records if record.time for clock in record.time.sm_mhz if clock is not None]
    time = first.time
    gpus = {gpu_name(run, record) for record in records}
    return Conditions(
        device=device_name(environment_of(run, first)),
        gpu=gpus.pop() if len(gpus) == 1 else None,
        timer=time.timer if time else None,
        l2=time.l2 if time else None,
        regime=time.regime if time else None,
        clock_mhz=(min(clocks), max(clocks)) if clocks else None,
    )

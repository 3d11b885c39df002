"""Measuring conditions of times: shown above a table, and never mixed within one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.record import Record, Run
from attnbench.store.environments import device_name, environment_of, gpu_name, input_of


@dataclass(frozen=True, slots=True)
class Conditions:
    """Machine, inputs, timer, cache state, regime and clock of some records."""

    device: str | None
    gpu: str | None
    "name of the GPU in tables, if the run has several and these records are of one"
    timer: str | None
    l2: str | None
    regime: str | None
    input: str | None
    "values of the inputs (`--input`)"
    clock_mhz: tuple[float, float] | None
    "lowest and highest SM clock during sampling; None if it was not read"

    @property
    def key(self) -> tuple[str | None, ...]:
        """What must be equal within one table, except for the GPU, which has a column if there are several."""
        return (self.device, self.timer, self.l2, self.regime, self.input)

    def words(self) -> list[str]:
        """GPU (if there are several), inputs (unless normal), timer, cache, regime and clock as texts, if known."""
        words = [] if self.gpu is None else [f"GPU {self.gpu}"]
        words += [f"input {self.input}"] if self.input not in (None, "normal") else []
        words += [] if self.timer is None else [f"timer {self.timer}"]
        # On a CPU the regime is "cpu", and no clock or cache state is set.
        if self.regime is not None and self.regime != "cpu":
            words += [] if self.l2 is None else [f"{self.l2} L2"]
            words.append(self.regime)
        if self.clock_mhz is not None:
            low, high = (f"{clock:.0f}" for clock in self.clock_mhz)
            words.append(f"SM {low} MHz" if low == high else f"SM {low}-{high} MHz")
        return words


def conditions_of(run: Run, records: Sequence[Record]) -> Conditions:
    """Return the conditions of records that share them; the clock range is that of all their samples."""
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
        input=input_of(run, first),
        clock_mhz=(min(clocks), max(clocks)) if clocks else None,
    )

"""A simulated card for the sampler's tests: a stage that keeps the order of events, a timer that draws times.

Times are the subject's true time × the drift of the moment × noise, quantised by the tick, all seeded.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from attnbench.machine.device import Device
from attnbench.measure.stage import Stage
from attnbench.measure.subject import Subject
from attnbench.measure.timer import Reading, Timer
from waiting import Clock

CARD = Device("cuda")


@dataclass
class Card:
    """What the card does to every kernel."""

    noise: float = 0.005
    drift: float = 0.0
    "relative swing of all times over `period` samples"
    period: float = 50.0
    tick_ms: float = 0.0
    top_mhz: float = 1980.0
    power_limited: bool = False
    seed: int = 0
    now: int = 0
    clock_log: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def ms(self, true_ms: float) -> float:
        self.now += 1
        swing = 1 + self.drift * math.sin(2 * math.pi * self.now / self.period)
        value = true_ms * swing * math.exp(self.random.gauss(0, self.noise))
        return max(self.tick_ms, round(value / self.tick_ms) * self.tick_ms) if self.tick_ms else value

    def mhz(self) -> float:
        if self.power_limited:
            self.top_mhz = max(1500.0, self.top_mhz - 5)
        return self.top_mhz


class SimulatedStage(Stage):
    """Keeps the order of events."""

    kind = "cuda"

    def __init__(self, device: Device = CARD, l2: str = "cold") -> None:
        super().__init__()
        self.device, self.l2 = device, l2
        self.events: list[str] = []
        self.leads: list[float] = []
        self.pauses: list[float] = []

    def begin(self, lead_s: float) -> None:
        super().begin(lead_s)
        self.leads.append(lead_s)
        self.events.append("begin")

    def ready(self, subject: Subject) -> None:
        if subject.reset:
            subject.reset()
        self.events.append(f"ready {subject.name}")

    def mark(self) -> None:
        self.events.append("mark")

    def end(self) -> None:
        super().end()
        self.events.append("end")

    def sm_mhz(self, count: int) -> list[float | None]:
        return [None] * count


class SimulatedTimer(Timer):
    """Draws each sample from the card; `truth` has the true time of each subject by name."""

    name = "simulated"
    title = "drawn from a seeded card"
    devices = ("cpu", "cuda")

    def __init__(self, card: Card, truth: dict[str, float], clock: Clock | None = None) -> None:
        self.card, self.truth, self.turns, self.clock = card, truth, [], clock or Clock()
        self.tick_ms = card.tick_ms

    def measure(self, stage, batch, lead_s, announce):
        stage.begin(lead_s)
        readings = []
        for index, subject in batch:
            announce(index, "sample")
            stage.ready(subject)
            subject.call()
            self.turns.append(subject.name)
            ms = self.card.ms(self.truth[subject.name])
            self.clock.pass_by(ms / 1e3)
            readings.append(Reading(ms, sm_mhz=self.card.mhz(), kernels=("k",), kernel_ms=(1.0,)))
        stage.end()
        return readings

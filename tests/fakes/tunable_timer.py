"""A timer that draws the times of tunable.py (give this file in ATTNBENCH_TIMERS): drift, noise, a seed for each."""

from __future__ import annotations

import math
import random
import re

from attnbench.measure.timer import Reading, Timer

BEST = "c17"


def true_ms(name: str) -> float:
    """Time of a subject: c17 leads by 2 %, the default is 30 % slower."""
    match = re.search(r"\[c(\d+)\]", name)
    if match is None:
        return 1.3
    return 1.0 if f"c{match[1]}" == BEST else 1.02 + 0.012 * int(match[1])


class Simulated(Timer):
    """Drawn."""

    name = "simulated"
    title = "drawn from a table"
    devices = ("cpu", "cuda")

    def measure(self, stage, batch, lead_s, announce):
        lots = stage.kept.setdefault("lots", random.Random(len(batch)))
        readings = []
        stage.begin(lead_s)
        for index, subject in batch:
            announce(index, "sample")
            stage.ready(subject)
            subject.call()
            if not subject.callable_untimed:  # an inspection, which comes at any moment: it takes none of the lots
                readings.append(Reading(true_ms(subject.name)))
                continue
            level = stage.kept["level"] = 0.99 * stage.kept.get("level", 0.0) + lots.gauss(0.0, 0.005)
            readings.append(
                Reading(
                    true_ms(subject.name) * math.exp(level + lots.gauss(0.0, 0.005)), kernels=("k",), kernel_ms=(1.0,)
                )
            )
        stage.end()
        return readings

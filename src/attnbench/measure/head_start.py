"""How far the host must be ahead of a GPU so that a sample is the device's time alone."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence

from attnbench.measure.stage import Stage
from attnbench.measure.subject import Subject
from attnbench.measure.timer import Reading, Timer

LEAD_S = 1e-3
"""Head start of the host in every batch: the first launches after a pause are slow."""
FIRST_LEAD_S = 5e-3
"""Of the first batch, when nothing is known of the calls."""
OWN_LEAD_S = 1e-3
"""Host time of a call above which each of its samples has a head start of its own: the driver queues about a thousand
launches, so that a call of hundreds uses up the head start of its batch."""


def lead_of(host_s: float) -> float:
    """Return the head start that a host needs which takes `host_s` to queue what follows, s."""
    return 1.15 * host_s


def led(subject: Subject, stage: Stage, seconds: float, prepare: Callable[[], None] | None = None) -> Subject:
    """Return a subject whose samples each begin with a head start of the host.

    Args:
        subject: to be sampled.
        stage: of the group.
        seconds: of the head start, which begins when `prepare` has been queued, even if that waited for the device.
        prepare: instead of the subject's reset.
    """
    prepare = prepare or subject.reset

    def reset() -> None:
        if prepare:
            prepare()
        stage.lead(seconds)

    return dataclasses.replace(subject, reset=reset)


class HeadStarts:
    """The head starts of a group's batches and samples, from the times of the batches so far.

    Args:
        count: number of subjects, yardsticks included.
        timer: of the group.
        stage: of the group.
    """

    def __init__(self, count: int, timer: Timer, stage: Stage) -> None:
        self.timer, self.stage = timer, stage
        self.host_s = 0.0
        "host time to queue one sample, in the last batch"
        self.device_s = [0.0] * count
        "device time of one sample of each, without gaps where the timer tells, in the last batch that contained it"
        self.call_s = [0.0] * count
        "host time of a call of each, likewise; 0 where the timer does not tell, or waits for the device"

    def remember(self, order: Sequence[int], readings: Sequence[Reading]) -> None:
        """Note the times of a batch that has just ended."""
        self.host_s = self.stage.queued_s / len(order)
        for index in set(order):
            found = [reading for one, reading in zip(order, readings, strict=True) if one == index]
            self.device_s[index] = statistics.fmean(reading.busy_ms or reading.ms for reading in found) / 1e3
            if self.timer.device_time:
                self.call_s[index] = statistics.fmean(reading.host_ms or 0.0 for reading in found) / 1e3

    def of_batch(self, order: Sequence[int]) -> float:
        """Return how long the device must be held so that the host is ahead at every sample of the batch, s."""
        if self.stage.kind != "cuda":
            return 0.0
        if self.host_s == 0.0:
            return FIRST_LEAD_S
        behind = most = 0.0
        for index in order:
            behind += self.host_s - self.device_s[index] - self._own_s(index)
            most = max(most, behind)
        return LEAD_S + lead_of(most)

    def led(self, index: int, subject: Subject) -> Subject:
        """Return a subject, with a head start before each of its samples if its calls take the host long."""
        seconds = self._own_s(index)
        return led(subject, self.stage, seconds) if seconds else subject

    def _own_s(self, index: int) -> float:
        call_s = self.call_s[index]
        return lead_of(call_s) if call_s > max(OWN_LEAD_S, self.device_s[index]) else 0.0

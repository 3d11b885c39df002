"""The host's head start: a call that takes the host long to queue is timed as the device's work, in looks too."""

from __future__ import annotations

import statistics

import pytest

from attnbench.machine.device import CPU
from attnbench.measure import inspections, sampling
from attnbench.measure.head_start import LEAD_S, HeadStarts
from attnbench.measure.plan import Plan
from attnbench.measure.sampling import sample
from attnbench.measure.stage import MAX_LEAD_S, CpuStage
from attnbench.measure.subject import Subject
from attnbench.measure.timer import Reading, Timer

KERNELS = 500
"""Launches of a call: two of them fill the driver's queue."""
DEPTH = 1024
"""Launches that the driver queues before a launch waits for the device."""


class Queue(CpuStage):
    """A device that works off a queue of launches, and the host that fills it; times in s."""

    kind = "cuda"

    def __init__(self) -> None:
        super().__init__()
        self.host = 0.0
        self.ends: list[float] = []
        "of each launch so far"

    def launch(self, host_s: float, device_s: float) -> float:
        """Queue a kernel; return when it starts."""
        self.host += host_s
        if len(self.ends) >= DEPTH:
            self.host = max(self.host, self.ends[-DEPTH])
        start = max(self.host, self.ends[-1] if self.ends else 0.0)
        self.ends.append(start + device_s)
        return start

    def begin(self, lead_s: float) -> None:
        self.end()
        self.lead(lead_s)
        self.begun = self.host

    def lead(self, seconds: float) -> None:
        self.launch(0.0, min(seconds, MAX_LEAD_S))

    def end(self) -> None:
        self.queued_s = self.host - getattr(self, "begun", self.host)
        self.host = max([self.host, *self.ends[-1:]])


class OfQueue(Timer):
    """Reads the queue; `truth` has the host's and the device's time of a call by the subject's name, s."""

    name, title, devices = "queue", "of a simulated queue", ("cpu", "cuda")

    def __init__(self, queue: Queue, truth: dict[str, tuple[float, float]], *, tells_busy: bool) -> None:
        self.queue, self.truth, self.tells_busy = queue, truth, tells_busy

    def measure(self, stage, batch, lead_s, announce):
        queue, readings = self.queue, []
        queue.begin(lead_s)
        for _, subject in batch:
            queue.ready(subject)
            subject.call()
            called = queue.host
            host_s, device_s = (part / KERNELS for part in self.truth[subject.name])
            starts = [queue.launch(host_s, device_s) for _ in range(KERNELS)]
            span, queued = queue.ends[-1] - starts[0], queue.host - called
            busy = 1e3 * KERNELS * device_s if self.tells_busy else None
            readings.append(Reading(1e3 * span, busy_ms=busy, host_ms=1e3 * queued))
        queue.end()
        return readings


class Looking:
    """Keeps the times of its looks."""

    undecided = False

    def __init__(self) -> None:
        self.seen: list[tuple[float, ...]] = []

    def begin(self) -> None: ...

    def disturb(self) -> None: ...

    def prepare(self) -> None: ...

    def finish(self, recorded_ms, repeated_ms, ordinary_ms, new_ms, lead_s):
        assert lead_s > 0
        self.seen.append((recorded_ms, repeated_ms, ordinary_ms, new_ms))


@pytest.mark.parametrize("tells_busy", [True, False])
def test_a_call_that_takes_the_host_long_is_timed_as_the_device_works(
    monkeypatch: pytest.MonkeyPatch, tells_busy: bool
) -> None:
    queue, looking = Queue(), Looking()
    truth = {"eager": (0.026, 0.0033), "graph": (0.0024, 0.003), "slow": (0.002, 0.012)}
    timer = OfQueue(queue, truth, tells_busy=tells_busy)
    monkeypatch.setattr(sampling, "choose", lambda name, device: timer)
    monkeypatch.setattr(sampling, "open_stage", lambda device, l2: queue)
    monkeypatch.setattr(inspections.Inspections, "due", lambda self, sampled_s, *, last: last)
    subjects = [Subject(name=name, call=lambda: None, inspector=looking) for name in truth]
    group = sample(subjects, device=CPU, plan=Plan(warmup=4, iterations=24))
    for timing in group.timings:
        assert statistics.median(timing.samples_ms) == pytest.approx(1e3 * truth[timing.name][1], rel=0.02)
    assert len(looking.seen) == len(truth)
    for times, (_, device_s) in zip(looking.seen, truth.values(), strict=True):
        assert times == pytest.approx([1e3 * device_s] * 4, rel=0.05)


def test_the_device_is_held_until_the_host_is_ahead_of_the_worst_place() -> None:
    queue = Queue()
    starts = HeadStarts(2, OfQueue(queue, {}, tells_busy=True), queue)
    starts.host_s, starts.device_s = 3e-4, [4e-5, 5e-3]
    # Ten short ones first: the host falls behind by 260 us at each, whatever the long ones make up for later.
    assert starts.of_batch([0] * 10 + [1] * 10) == pytest.approx(LEAD_S + 1.15 * 10 * 2.6e-4)
    assert starts.of_batch([1] * 10) == LEAD_S

"""Samples of several closures, taken in turn.

One round calls every subject once, in an order that is random but balanced: no subject is first more often than
another, and none follows the same one more often.  A drifting clock, a card that heats up or another process on the
machine therefore affects all subjects alike, and the ratio of two samples of one round is free of such effects.
Rounds are queued in batches behind a backlog (`stage`), read by a timer (`timer`), and continue until the requested
precision is reached (`stats.stopping`).

Between batches, at moments drawn from the operating system's entropy, each subject that has an
inspector (`subject`) is inspected in a sample of its own, which is not recorded.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from attnbench.machine.device import Device
from attnbench.measure.head_start import HeadStarts
from attnbench.measure.inspections import Inspections
from attnbench.measure.plan import Plan
from attnbench.measure.stage import MAX_BATCH, Stage, open_stage, run_untimed
from attnbench.measure.subject import Subject
from attnbench.measure.timer import ALL, Reading, Timer, Untimed, available, choose, names_of
from attnbench.record import INTERRUPTED, PowerSeries
from attnbench.stats.design import balanced_orders
from attnbench.stats.stopping import StopRule
from attnbench.stats.summary import FEWEST_FOR_INTERVAL

WARMUP_S = 0.03
"""Least duration of the untimed calls before the first sample, where no count is set."""
HEAT_S = 1.0
"""Duration of the untimed load before sustained samples: on an H200 the clock has settled after half of it."""
BATCH_S = 0.04
"""Host or device time of a batch: long compared with starting a profiler, short enough for checks in between."""
COOL = 0.985
"""In the burst regime the sampler pauses while the clock is below this share of the cool card's."""
PAUSE_S = 0.1
BUSY = 0.5
"""Least share of the time that kernels must run for the card to be possibly at its power limit."""
OWN = 0.02
"""Share of a sample from which the timer's own overhead is noted."""
LATE = 0.05
"""Share of samples in which the host may be late before it is noted."""
DISAGREE = 0.05
"""Timers whose medians differ by more than this share are flagged."""
YARDSTICK_ROUNDS = 30
"""Least number of rounds that yardsticks take part in: the first ones."""
YARDSTICK_SHARE = 0.05
"""Upper limit of the yardsticks' share of the subjects' time in later rounds: yardsticks that are long compared with
the subjects skip rounds."""


@dataclass(kw_only=True, slots=True)
class Timing:
    """Samples of one subject, in the order of measuring."""

    name: str
    timer: str
    l2: str
    regime: str
    stopped_by: str = ""
    tick_ms: float = 0.0
    "resolution of the timer"
    samples_ms: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    "seconds since the group began"
    sm_mhz: list[float | None] = field(default_factory=list)
    busy_ms: float | None = None
    host_ms: float | None = None
    kernels: tuple[str, ...] = ()
    kernel_launches: tuple[int, ...] = ()
    kernel_ms: tuple[float, ...] = ()
    "of one call: kernel names in order of their first launch, launches of each, total time of its launches"
    notes: tuple[str, ...] = ()


@dataclass(kw_only=True, slots=True)
class GroupTiming:
    """Samples of a group: one timing per subject (in the subjects' order), by each requested timer."""

    timings: list[Timing]
    by_timer: dict[str, list[Timing]] = field(default_factory=dict)
    "with timer=all: every timer that could time all subjects"
    yardsticks: list[Timing] = field(default_factory=list)
    "of the yardsticks that the timer could time, by the timer of `timings`"
    power: PowerSeries | None = None
    sampling_s: float = 0.0
    "wall time spent sampling, without inspections"


Announce = Callable[[int, str], None]
Ending = Callable[[bool], bool]
"""Called after each batch with whether one more round would give enough samples; returns True if the run is to end."""


class Interrupted(Exception):
    """The run is to end, with fewer samples than an interval of the median needs."""


def sample(
    subjects: Sequence[Subject],
    *,
    device: Device,
    plan: Plan,
    announce: Announce = lambda index, phase: None,
    yardsticks: Sequence[Subject] = (),
    ending: Ending = lambda enough: False,
    power: bool = True,
) -> GroupTiming:
    """Sample all subjects round by round.

    Args:
        subjects: competitors; each must have been called once before (compiled, checked).
        device: where they run.
        plan: settings and stopping rule.
        announce: called with (index of the subject, phase) before each turn, but not for yardsticks.
        yardsticks: sampled in the same rounds, each at a random place; they affect neither the order of the
            subjects nor when to stop.
        ending: called after each batch; whether to stop after the current round and its inspection.
        power: whether to read the board's power meanwhile.

    Raises:
        Interrupted: sampling had to stop before there were enough samples.
        UsageError: an unknown timer, cache state or regime, or one that the device does not have.
        Unavailable: the timer does not work here, or (`Untimed`) cannot time one of the subjects.
    """
    if plan.timer == ALL:
        timers = [t for t in available(device) if not any(t.accepts(subject) for subject in subjects)]
    else:
        # Each once: on a CPU auto is the wall clock.
        timers = list({timer.name: timer for timer in (choose(name, device) for name in names_of(plan.timer))}.values())
    if len(timers) == 1 and plan.timer != ALL:
        return _sample(subjects, timers[0], device, plan, announce, yardsticks, ending, power)
    share = dataclasses.replace(plan, max_seconds=plan.max_seconds / len(timers))
    groups: dict[str, GroupTiming] = {}
    for timer in timers:
        known_work, ends = ((), lambda enough: ending(True)) if groups else (yardsticks, ending)
        reads = power and not groups  # that of the later timers is of the same calls, and not kept
        try:
            groups[timer.name] = _sample(subjects, timer, device, share, announce, known_work, ends, reads)
        except Interrupted:
            if not groups:
                raise
            break
    first = groups[timers[0].name]
    first.by_timer = {name: group.timings for name, group in groups.items()}
    of_device = [groups[timer.name] for timer in timers if timer.device_time and timer.name in groups]
    for index, timing in enumerate(first.timings):
        timing.notes += tuple(_disagreements([group.timings[index] for group in of_device]))
    first.sampling_s = sum(group.sampling_s for group in groups.values())
    return first


def _sample(
    subjects: Sequence[Subject],
    timer: Timer,
    device: Device,
    plan: Plan,
    announce: Announce,
    yardsticks: Sequence[Subject],
    ending: Ending,
    power: bool,
) -> GroupTiming:
    from attnbench.machine.telemetry import PowerSampler

    for subject in subjects:
        if why := timer.accepts(subject):
            raise Untimed(subject.name, f"{timer.name}: subject={subject.name} cannot be timed; {why}")
    with _no_garbage_collection(), open_stage(device, plan.l2) as stage:
        known_work = [one for one in yardsticks if not timer.accepts(one)]
        sampler = _Sampler(subjects, timer, stage, plan, announce, known_work, ending)
        sampler.warm_up()
        with PowerSampler(device) if power else nullcontext() as readings:
            sampler.begun = time.perf_counter()
            stopped_by = sampler.run()
            spent = sampler.spent_s()
    timings = [sampler.timing(index, stopped_by) for index in range(len(subjects) + len(known_work))]
    return GroupTiming(
        timings=timings[: len(subjects)],
        yardsticks=timings[len(subjects) :],
        power=readings.series(0.0) if readings else None,
        sampling_s=spent,
    )


class _Sampler:
    """Samples one group with one timer."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        timer: Timer,
        stage: Stage,
        plan: Plan,
        announce: Announce,
        known_work: Sequence[Subject] = (),
        ending: Ending = lambda enough: False,
    ) -> None:
        self.subjects, self.timer, self.stage, self.plan, self.announce = subjects, timer, stage, plan, announce
        self.ending = ending
        self.everyone = [*subjects, *known_work]
        self.rule = StopRule(
            rel_ci=plan.rel_ci, max_seconds=plan.max_seconds, iterations=plan.iterations, tick=timer.tick_ms
        )
        self.readings: list[list[Reading]] = [[] for _ in self.everyone]
        self.last_ms: list[list[float]] = [[] for _ in subjects]
        "the last two samples of each subject, recorded or not"
        self.rounds: list[list[int]] = [[] for _ in self.everyone]
        self.rng = random.Random(plan.seed)
        self.yardstick_every = 1
        "yardsticks are in every such round"
        self.begun = 0.0
        self.round_s = 0.0
        "wall time of one round, in the last batch"
        self.orders = self._orders()
        self.cool_mhz = 0.0
        self.last_mhz: list[float] = []
        self.batch_s = BATCH_S
        self.head_starts = HeadStarts(len(self.everyone), timer, stage)
        self.inspections = Inspections(subjects, timer, stage, announce)

    def spent_s(self) -> float:
        """Time spent sampling, without inspections."""
        return time.perf_counter() - self.begun - self.inspections.spent_s

    def warm_up(self) -> None:
        """Run untimed rounds: the number set, or until clocks and caches have settled."""
        plan = self.plan
        if plan.regime == "sustained" and self.stage.kind == "cuda":
            run_untimed(self.stage, self.subjects, HEAT_S)
        if plan.warmup is not None:
            left = plan.warmup
            while left > 0:
                rounds = self._fit(left)
                self._batch(rounds, keep=False)
                left -= rounds
                self._cut_short()
            return
        started = time.perf_counter()
        self._batch(1, keep=False)
        while time.perf_counter() - started < WARMUP_S:
            self._batch(self._fit(8), keep=False)
        self._cut_short()

    def run(self) -> str:
        """Sample until the stopping rule gives a reason; go on without recording while an inspection is undecided."""
        why: str | None = None
        while True:
            done, before_s = len(self.readings[0]), self.spent_s()
            rounds = self.inspections.rounds() if why else self.rule.next_look(done) - done
            self._batch(self._fit(rounds, hurried=not why), keep=not why)
            samples = [[reading.ms for reading in readings] for readings in self.readings[: len(self.subjects)]]
            if why:
                self.inspections.spent_s += self.spent_s() - before_s
            why = why or self.rule.decide(samples, self.spent_s())
            why = self._cut_short(why)
            if self.inspections.due(self.spent_s(), last=bool(why)):
                self.inspections.inspect(samples, self.last_ms, self.head_starts.call_s, self.spent_s)
            if why and not self.inspections.undecided:
                return why
            self._cool()

    def _cut_short(self, why: str | None = None) -> str | None:
        """Return the reason to stop: `why`, or interruption where the run is to end.

        Raises:
            Interrupted: the run is to end, and there are not enough samples.
        """
        rounds = len(self.readings[0])
        soon = rounds + 1 >= FEWEST_FOR_INTERVAL
        if not self.ending(soon or why is not None) or why:
            return why
        if not soon:
            raise Interrupted
        return INTERRUPTED if rounds >= FEWEST_FOR_INTERVAL else None

    def timing(self, index: int, stopped_by: str) -> Timing:
        """Return all samples of one subject or yardstick (yardsticks come after the subjects)."""
        readings, stage = self.readings[index], self.stage
        busy = [r.busy_ms for r in readings if r.busy_ms is not None]
        host = [r.host_ms for r in readings if r.host_ms is not None]
        kernels = _kernels(readings)
        return Timing(
            name=self.everyone[index].name,
            timer=self.timer.name,
            l2=stage.l2,
            regime=self.plan.regime if stage.kind == "cuda" else "cpu",
            stopped_by=stopped_by,
            tick_ms=self.timer.tick_ms,
            samples_ms=[r.ms for r in readings],
            rounds=self.rounds[index],
            at_s=[round((r.at_s or self.begun) - self.begun, 6) for r in readings],
            sm_mhz=[r.sm_mhz for r in readings],
            busy_ms=statistics.median(busy) if busy else None,
            host_ms=statistics.median(host) if host else None,
            kernels=tuple(kernels),
            kernel_launches=tuple(len(times) for times in kernels.values()),
            kernel_ms=tuple(map(sum, kernels.values())),
            notes=tuple(_notes(readings, self.timer.own_ms(stage))),
        )

    def _orders(self) -> Iterator[tuple[int, ...]]:
        block, seed = 8 * len(self.subjects), self.plan.seed
        while True:
            yield from balanced_orders(len(self.subjects), block, seed)
            seed += 1

    def _fit(self, rounds: int, *, hurried: bool = True) -> int:
        """Limit `rounds` to the length of a batch, the marker's slots and, if `hurried`, the seconds left."""
        if not self.round_s:
            return 1  # how far the host must be ahead of a longer batch is still unknown
        seconds = self.batch_s
        if hurried and self.begun and self.plan.iterations is None:
            seconds = min(seconds, self.plan.max_seconds - self.spent_s())
        return max(1, min(rounds, MAX_BATCH // len(self.everyone), int(seconds / self.round_s)))

    def _batch(self, rounds: int, *, keep: bool) -> None:
        """Measure some rounds, as many as `_fit` allows."""
        first = len(self.readings[0])
        turns = [(number, index) for number in range(first, first + rounds) for index in self._order(number)]
        batch = [(index, self.head_starts.led(index, self.everyone[index])) for _, index in turns]
        lead_s = self.head_starts.of_batch([index for index, _ in batch])
        started = time.perf_counter()
        readings = self.timer.measure(self.stage, batch, lead_s, self._announce_subject)
        ended = time.perf_counter()
        self.round_s = (ended - started) / rounds
        for (number, index), reading in zip(turns, readings, strict=True):
            if reading.at_s is None:
                reading.at_s = started
            if index < len(self.subjects):
                self.last_ms[index] = [*self.last_ms[index][-1:], reading.ms]
            if keep:
                self.readings[index].append(reading)
                self.rounds[index].append(number)
        self.head_starts.remember([index for index, _ in batch], readings)
        self._space_yardsticks(readings, ended - started)
        self.last_mhz = [
            reading.sm_mhz
            for (index, _), reading in zip(batch, readings, strict=True)
            if reading.sm_mhz and index < len(self.subjects)
        ]
        gc.collect(0)  # reference cycles of the batch; automatic collection is off while the group is sampled

    def _order(self, number: int) -> list[int]:
        """Return the order of one round: subjects balanced, yardsticks inserted at random places."""
        order = list(next(self.orders))
        if number < YARDSTICK_ROUNDS or number % self.yardstick_every == 0:
            for index in range(len(self.subjects), len(self.everyone)):
                order.insert(self.rng.randrange(len(order) + 1), index)
        return order

    def _announce_subject(self, index: int, phase: str) -> None:
        """Announce a subject but not a yardstick: the work that fails in its turn was queued by a subject before it."""
        if index < len(self.subjects):
            self.announce(index, phase)

    def _space_yardsticks(self, readings: Sequence[Reading], elapsed_s: float) -> None:
        apart = max(0.0, elapsed_s - sum(reading.ms for reading in readings) / 1e3) / len(readings)  # a flush, markers
        costs, own = [apart + one for one in self.head_starts.device_s], len(self.subjects)
        self.yardstick_every = max(1, math.ceil(sum(costs[own:]) / (YARDSTICK_SHARE * sum(costs[:own]) or math.inf)))

    def _cool(self) -> None:
        """In the burst regime, pause while the card's clock is lower than when it was cool.

        The reference is the group's own best batch and not the data sheet: a short kernel with gaps never reaches the
        highest clock and is far from the power limit, and during a pause its clock would only drop.
        """
        if self.plan.regime != "burst" or not self.last_mhz:
            return
        clock = statistics.median(self.last_mhz)
        self.cool_mhz = max(self.cool_mhz, clock)
        busy = sum(self.head_starts.device_s[: len(self.subjects)]) / self.round_s
        if busy > BUSY and clock < COOL * self.cool_mhz:
            self.batch_s = max(BATCH_S / 8, self.batch_s / 2)
            pause = PAUSE_S
            if self.plan.iterations is None:
                pause = min(pause, (self.plan.max_seconds - self.spent_s()) / 2)
            time.sleep(max(0.0, pause))


def _notes(readings: Sequence[Reading], own_ms: float) -> Iterator[str]:
    if readings and own_ms > OWN * statistics.median(reading.ms for reading in readings):
        yield f"an empty call reads {1e3 * own_ms:.2g} µs by this timer: so much of each sample is the harness"
    shapes = {reading.kernels for reading in readings}
    if len(shapes) > 1:
        yield f"the kernels of a call varied: {len(shapes)} different sequences in {len(readings)} samples"
    late = sum(reading.waited for reading in readings)
    if late > LATE * len(readings):
        yield f"the host was late in {late} of {len(readings)} samples: gaps between the kernels are partly the host's"


def _kernels(readings: Sequence[Reading]) -> dict[str, list[float]]:
    """Return the kernels of a call by name, with the median time of each launch; a model's step has thousands."""
    found: dict[str, list[float]] = {}
    if readings:
        alike = [r.kernel_ms for r in readings if r.kernels == readings[0].kernels]
        for name, times in zip(readings[0].kernels, zip(*alike, strict=True), strict=True):
            found.setdefault(name, []).append(statistics.median(times))
    return found


def _disagreements(timings: Sequence[Timing]) -> Iterator[str]:
    if not timings:
        return
    first = timings[0]
    base = statistics.median(first.samples_ms)
    for other in timings[1:]:
        median = statistics.median(other.samples_ms)
        if abs(median / base - 1) > DISAGREE:
            yield (
                f"timers disagree: {other.timer} {1e3 * median:.4g} µs, "
                f"{first.timer} {1e3 * base:.4g} µs ({100 * (median / base - 1):+.0f} %)"
            )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Switch automatic garbage collection off: in the middle of a batch it would make the host late."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()

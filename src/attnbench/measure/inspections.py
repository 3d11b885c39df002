"""When subjects are inspected while they are sampled, and the samples that are looked at.

An inspected sample is one call like any other, by the same timer, but on data that the subject has not
seen and over outputs that were spoiled (`subject.Inspector` does both).  Its moment is drawn from the
operating system's entropy, so a subject cannot prepare for it.  Inspected samples are not recorded: they
show whether the recorded ones are times of the work.
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence

from attnbench.measure.stage import Stage
from attnbench.measure.subject import Inspector, Misleading, Subject
from attnbench.measure.timer import Timer, choose

EVERY_S = 1.0
"""Mean time of sampling between two inspections of a group; every group has one at least."""
TIMES = 5.0
"""Mean time of sampling between two inspections is at least so many times what the last one took: a whole model's
calls take long."""
MOST_ROUNDS = 64
"""Between a look that leaves something open and the next, once all samples are recorded."""
LEAD_S = 0.003
"""Head start of the host before each sample of an inspection: it prepares inside the queue."""
LONG_MS = 50.0
"""Above this the first inspected sample is compared with the median so far: nothing is called just for that."""


class Inspections:
    """The inspections of one group.

    Args:
        subjects: of the group; those without an inspector are passed over.
        timer: of the group.
        stage: of the group.
        announce: called with (index of the subject, phase) before each turn.
    """

    def __init__(
        self, subjects: Sequence[Subject], timer: Timer, stage: Stage, announce: Callable[[int, str], None]
    ) -> None:
        self.subjects, self.timer, self.stage, self.announce = subjects, timer, stage, announce
        self.spent_s = 0.0
        "wall time of all inspections so far"
        self._wanted = any(subject.inspector for subject in subjects)
        self._done = False
        self._entropy = random.SystemRandom()
        self._due_s = self._entropy.expovariate(1 / EVERY_S)
        self._took_s = 0.0
        "of the looks since the last time that nothing was left open"

    @property
    def undecided(self) -> bool:
        """Whether looks so far leave it open for a subject: it is to be looked at again after further samples."""
        return any(subject.inspector is not None and subject.inspector.undecided for subject in self.subjects)

    def due(self, sampled_s: float, *, last: bool) -> bool:
        """Whether to inspect now.

        Args:
            sampled_s: time spent sampling so far.
            last: whether sampling is about to end.
        """
        if not self._wanted:
            return False
        return self.undecided or sampled_s >= self._due_s or (last and not self._done)

    def rounds(self) -> int:
        """How many rounds to sample before the next look where none are left to be recorded: nobody can count on it."""
        return round(math.exp(self._entropy.uniform(0.0, math.log(MOST_ROUNDS))))

    def inspect(
        self, samples_ms: Sequence[Sequence[float]], last_ms: Sequence[Sequence[float]], sampled_s: Callable[[], float]
    ) -> None:
        """Take a look at every subject, or at those alone for whom the last look left it open.

        Args:
            samples_ms: of each subject so far.
            last_ms: of each subject the last two, of rounds between looks too.
            sampled_s: time spent sampling so far.

        Raises:
            Misleading: the times of a subject are not those of its work.
        """
        started = time.perf_counter()
        again = self.undecided
        for index, inspector in enumerate(subject.inspector for subject in self.subjects):
            if inspector is not None and (inspector.undecided or not again):
                self._look(index, inspector, samples_ms[index], last_ms[index])
        took_s = time.perf_counter() - started
        self.spent_s += took_s
        self._took_s += took_s
        if not self.undecided:
            self._done = True
            self._due_s = sampled_s() + self._entropy.expovariate(1 / max(EVERY_S, TIMES * self._took_s))
            self._took_s = 0.0

    def _look(self, index: int, inspector: Inspector, samples_ms: Sequence[float], last_ms: Sequence[float]) -> None:
        subject = self.subjects[index]
        timer = self.timer if self.timer.inspects else choose("auto", self.stage.device)
        known_ms = statistics.median(samples_ms)

        def then_lead(prepare: Callable[[], None]) -> Callable[[], None]:
            def reset() -> None:
                prepare()
                # However long the host took, and should it have waited for the device: it is ahead again.
                self.stage.lead(LEAD_S)

            return reset

        ordinary, inspected = (
            dataclasses.replace(subject, reset=then_lead(prepare), callable_untimed=False)
            for prepare in (inspector.disturb, inspector.prepare)
        )
        # As many calls on known data as nobody can count on: some in a row, of which the last two are compared, and one
        # after the work that comes before the inspected one.
        known = timer is self.timer and known_ms > LONG_MS and not inspector.undecided
        before = [] if known else [subject] * self._entropy.randint(3, 6) + [ordinary]
        readings = timer.measure(self.stage, [(index, one) for one in (*before, inspected)], LEAD_S, self.announce)
        self.announce(index, "inspection")
        *_, one_ms, two_ms, ordinary_ms, new_ms = [known_ms] * 3 * known + [reading.ms for reading in readings]
        recorded_ms = statistics.fmean(last_ms) if timer is self.timer else None
        if fault := inspector.finish(recorded_ms, (one_ms + two_ms) / 2, ordinary_ms, new_ms):
            raise Misleading(subject.name, fault)

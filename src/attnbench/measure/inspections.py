"""When subjects are inspected while they are sampled, and how an inspected sample is taken.

An inspected sample is one call like any other, by the same timer, but on data that the subject has not
seen and over outputs that were overwritten (`subject.Inspector` does both).  Its moment is drawn from the
operating system's entropy, so a subject cannot prepare for it.  Inspected samples are not recorded: they
show whether the recorded samples measure the subject's work.
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence

from attnbench.measure.head_start import lead_of, led
from attnbench.measure.stage import Stage
from attnbench.measure.subject import Inspector, Misleading, Subject
from attnbench.measure.timer import Timer, Untimed, choose

EVERY_S = 1.0
"""Mean sampling time between two inspections of a group; every group has at least one."""
TIMES = 5.0
"""The mean sampling time between two inspections is at least this multiple of the last inspection's duration: calls of
a whole model are long."""
MOST_ROUNDS = 64
"""Upper limit of rounds between an undecided inspection and the next one, once all samples are recorded."""
LEAD_S = 0.003
"""Least head start of the host before each sample of an inspection, beyond what its call needs."""
LONG_LEAD_S = 2 * LEAD_S
"""Above this the calls in a row have a head start each, too: that of the batch would not last."""
LONG_MS = 50.0
"""Above this the first inspected sample is compared with the median so far, to save extra calls."""


class Inspections:
    """The inspections of one group.

    Args:
        subjects: of the group; those without an inspector are skipped.
        timer: of the group.
        stage: of the group.
        announce: called with (index of the subject, phase) before each turn.
    """

    def __init__(
        self, subjects: Sequence[Subject], timer: Timer, stage: Stage, announce: Callable[[int, str], None]
    ) -> None:
        self.subjects, self.timer, self.stage, self.announce = subjects, timer, stage, announce
        self._timers: dict[int, Timer] = {}
        "by subject, where the group's timer cannot time a single call"
        self.spent_s = 0.0
        "wall time of all inspections so far"
        self._wanted = any(subject.inspector for subject in subjects)
        self._done = False
        self._entropy = random.SystemRandom()
        self._due_s = self._entropy.expovariate(1 / EVERY_S)
        self._took_s = 0.0
        "duration of the inspections since the last one that left nothing undecided"

    @property
    def undecided(self) -> bool:
        """Whether a subject is undecided: it has to be inspected again after further samples."""
        return any(subject.inspector is not None and subject.inspector.undecided for subject in self.subjects)

    def due(self, sampled_s: float, *, last: bool) -> bool:
        """Return whether to inspect now.

        Args:
            sampled_s: time spent sampling so far.
            last: whether sampling is about to end.
        """
        if not self._wanted:
            return False
        return self.undecided or sampled_s >= self._due_s or (last and not self._done)

    def rounds(self) -> int:
        """Draw the number of unrecorded rounds before the next inspection, so that no subject can predict it."""
        return round(math.exp(self._entropy.uniform(0.0, math.log(MOST_ROUNDS))))

    def inspect(
        self,
        samples_ms: Sequence[Sequence[float]],
        last_ms: Sequence[Sequence[float]],
        call_s: Sequence[float],
        sampled_s: Callable[[], float],
    ) -> None:
        """Inspect every subject, or only the undecided ones if there are any.

        Args:
            samples_ms: recorded samples of each subject so far.
            last_ms: the last two samples of each subject, also from unrecorded rounds.
            call_s: host time of a call of each subject.
            sampled_s: time spent sampling so far.

        Raises:
            Misleading: the samples of a subject do not measure its work.
        """
        started = time.perf_counter()
        again = self.undecided
        for index, inspector in enumerate(subject.inspector for subject in self.subjects):
            if inspector is not None and (inspector.undecided or not again):
                self._look(index, inspector, samples_ms[index], last_ms[index], LEAD_S + lead_of(call_s[index]))
        took_s = time.perf_counter() - started
        self.spent_s += took_s
        self._took_s += took_s
        if not self.undecided:
            self._done = True
            self._due_s = sampled_s() + self._entropy.expovariate(1 / max(EVERY_S, TIMES * self._took_s))
            self._took_s = 0.0

    def _look(
        self, index: int, inspector: Inspector, samples_ms: Sequence[float], last_ms: Sequence[float], lead_s: float
    ) -> None:
        subject = self.subjects[index]
        timer = self._timer(index)
        known_ms = statistics.median(samples_ms)
        self.announce(index, "inspection")
        # Another timer may record its samples in a way (a captured graph) that leaves no outputs behind.
        if timer is self.timer and (fault := inspector.begin()):
            raise Misleading(subject.name, fault)
        repeated = led(subject, self.stage, lead_s) if lead_s > LONG_LEAD_S else subject
        ordinary, inspected = (
            dataclasses.replace(led(subject, self.stage, lead_s, prepare), callable_untimed=False)
            for prepare in (inspector.disturb, inspector.prepare)
        )
        # An unpredictable number of calls on known data: some in a row, of which the last two are compared, and one
        # after the same preparation as the inspected one.
        known = timer is self.timer and known_ms > LONG_MS and not inspector.undecided
        before = [] if known else [repeated] * self._entropy.randint(3, 6) + [ordinary]
        readings = timer.measure(self.stage, [(index, one) for one in (*before, inspected)], LEAD_S, self.announce)
        self.announce(index, "inspection")
        *_, one_ms, two_ms, ordinary_ms, new_ms = [known_ms] * 3 * known + [reading.ms for reading in readings]
        recorded_ms = statistics.fmean(last_ms) if timer is self.timer else None
        if fault := inspector.finish(recorded_ms, (one_ms + two_ms) / 2, ordinary_ms, new_ms, lead_s):
            raise Misleading(subject.name, fault)

    def _timer(self, index: int) -> Timer:
        """Return the timer for single calls of a subject: the group's, the device's, or the wall clock.

        The last is for a subject that launches nothing from this process, such as one whose ranks are other processes.
        """
        if self.timer.inspects:
            return self.timer
        if index not in self._timers:
            timer = choose("auto", self.stage.device)
            try:
                timer.measure(self.stage, [(index, self.subjects[index])], LEAD_S, self.announce)
            except Untimed:
                timer = choose("wall", self.stage.device)
            self._timers[index] = timer
        return self._timers[index]

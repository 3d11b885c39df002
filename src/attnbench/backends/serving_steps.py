"""Times of the single steps of a series, each from its requests to its logits in the device's memory.

All are measured in one call of the series, in which the host waits for the device after each step: steps do not
overlap, as in benchmarks that print one line per step.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from attnbench.backends.base import InPlace
from attnbench.workloads.hstu_serving.case import CACHED_STEP

if TYPE_CHECKING:
    from attnbench.backends.serving_session import ServingSession


class StepTimes:
    """Phases that are steps: reading all of them runs the series once."""

    def __init__(self, session: ServingSession) -> None:
        """Start without times."""
        self.session = session
        self.ms: list[float] = []
        self.unread: set[int] = set()
        "steps of the last series whose time has not been read"

    def phases(self) -> dict[str, InPlace]:
        """Return phases named by the number of tokens that a user's step finds cached, with or without cache."""
        case = self.session.case
        names = (CACHED_STEP.format(case.found_of(step[0])) for step in case.steps)
        return {name: InPlace(partial(self.call, at), partial(self.step_ms, at)) for at, name in enumerate(names)}

    def call(self, number: int) -> None:
        """Ensure that there is an unread time of a step; run the series if there is none.

        A call marks nothing as read: the harness calls a subject once more, untimed, to warm the caches.
        """
        if number not in self.unread:
            self.take()

    def step_ms(self, number: int) -> float:
        """Read the time of a step in the last series, ms."""
        self.unread.discard(number)
        return self.ms[number]

    def take(self) -> None:
        """Run the series, one step at a time."""
        session = self.session
        self.ms = []
        for requests, wanted in zip(session.steps, session.found, strict=True):
            session.wait()
            began = time.perf_counter()
            session.step(requests, wanted)
            session.wait()
            self.ms.append(1e3 * (time.perf_counter() - began))
        self.unread = set(range(len(self.ms)))

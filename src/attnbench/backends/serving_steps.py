"""Times of the single steps of a series, each from its requests to its logits in the device's memory.

All are taken in one call of the series, in which the host waits for the device after each step: no step is hidden
behind another, as in benchmarks that print a line a step.
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
    """Phases that are steps: whoever asks for all of them carries the series out once."""

    def __init__(self, session: ServingSession) -> None:
        """None yet."""
        self.session = session
        self.ms: list[float] = []
        self.unread: set[int] = set()
        "steps of the last series whose time nobody has asked for"

    def phases(self) -> dict[str, InPlace]:
        """By the tokens that a user's step finds cached, whether there is a cache or not."""
        case = self.session.case
        names = (CACHED_STEP.format(case.found_of(step[0])) for step in case.steps)
        return {name: InPlace(partial(self.call, at), partial(self.step_ms, at)) for at, name in enumerate(names)}

    def call(self, number: int) -> None:
        """See that there is a time of a step that was not asked for: carry the series out, if there is none."""
        if number not in self.unread:
            self.take()
        self.unread.discard(number)

    def step_ms(self, number: int) -> float:
        """Milliseconds of a step in the last series."""
        return self.ms[number]

    def take(self) -> None:
        """Carry the series out, a step at a time."""
        session = self.session
        self.ms = []
        for requests, wanted in zip(session.steps, session.found, strict=True):
            session.wait()
            began = time.perf_counter()
            session.step(requests, wanted)
            session.wait()
            self.ms.append(1e3 * (time.perf_counter() - began))
        self.unread = set(range(len(self.ms)))

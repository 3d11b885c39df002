"""Simulated surroundings of a server: a clock, arrivals, and an engine with set durations and failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from attnbench.loadtest.generator import Arrival
from attnbench.loadtest.serving import Refused
from attnbench.models.hstu_ranking.request import Request

NONE = np.empty(0, dtype=np.int64)


def request(user: int, items: int = 3) -> Request:
    ids = np.arange(items, dtype=np.int64)
    return Request(user=user, items=ids, actions=ids % 8, candidates=ids[:2], context=np.zeros(2, dtype=np.int64))


@dataclass
class Clock:
    now: int = 0

    def __call__(self) -> int:
        return self.now


@dataclass
class Arrivals:
    """Requests at given times; each look takes a microsecond, a wait as long as it takes."""

    clock: Clock
    due_ns: Sequence[int]
    all_issued: bool = False
    over: bool = False
    completed: list[int] = field(default_factory=list)
    looks: int = 0
    _next: int = 0

    def take(self, timeout_s: float) -> list[Arrival]:
        self.looks += 1
        assert self.looks < 200_000, "the server does not come to an end"
        self.clock.now += 1000
        if self._next < len(self.due_ns) and self.due_ns[self._next] > self.clock.now:
            self.clock.now = min(self.due_ns[self._next], self.clock.now + round(timeout_s * 1e9))
        elif self._next == len(self.due_ns):
            self.clock.now += round(timeout_s * 1e9)
        found = []
        while self._next < len(self.due_ns) and self.due_ns[self._next] <= self.clock.now:
            found.append(Arrival(1000 + self._next, self._next, self.due_ns[self._next]))
            self._next += 1
        self.all_issued = self.over = self._next == len(self.due_ns)
        return found

    def answered(self, numbers: Sequence[int]) -> None:
        self.completed += numbers


@dataclass
class Library:
    """Whose request each arrival is; users below 0 are not known."""

    users: Sequence[int]

    def take(self, index: int) -> Request | Refused:
        user = self.users[index]
        return request(user) if user >= 0 else Refused("unknown user", str(user))


@dataclass
class Over:
    """A batch that is over at a time."""

    clock: Clock
    at: int
    fault: BaseException | None = None

    def done(self) -> bool:
        if isinstance(self.fault, OSError):
            raise self.fault  # a device that has failed fails at every question
        return self.clock.now >= self.at

    def wait(self) -> float | None:
        self.clock.now = max(self.clock.now, self.at)
        if self.fault is not None:
            raise self.fault
        return 1.0


@dataclass
class Engine:
    """Takes a while for each request, and fails as it is told to."""

    clock: Clock
    service_ns: int = 1_000_000
    depth: int = 1
    at_launch: Callable[[int, Sequence[Request]], None] = lambda number, requests: None
    "called with the number of the launch; raises to refuse it"
    at_end: Callable[[int], BaseException | None] = lambda number: None
    batches: list[list[int]] = field(default_factory=list)
    launches: int = 0
    _free_at: int = 0

    def launch(self, requests: Sequence[Request]) -> Over:
        users = [one.user for one in requests]
        assert len(set(users)) == len(users), "a user is in a batch twice"
        number = self.launches
        self.launches += 1
        self.at_launch(number, requests)
        self.batches.append(users)
        self._free_at = max(self._free_at, self.clock.now) + self.service_ns * len(requests)
        return Over(self.clock, self._free_at, self.at_end(number))

"""The order of execution: partitions as coroutines, copies that complete some time later, and what each partition knows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from .mistakes import Deadlock, Unfinished

SPEEDS = (1, 4, 16)


@dataclass(eq=False)
class Task:
    """A partition: all its warps act as one.

    `known` has a bit for each access to memory that happened before what the task does next.  Barriers pass these bits on, as
    do releases and acquires between programs; those of an asynchronous access are added only when it is waited for.  So two
    accesses are ordered if and only if the later one's task knows the earlier one, whatever the order in which they ran here.
    """

    name: str
    warps: int
    speed: int
    known: int = field(default=0, repr=False)
    products: list = field(default_factory=list)
    "asynchronous products that have not been waited for, oldest first"
    stores: list = field(default_factory=list)
    "accesses of bulk stores that have not been waited for, oldest first"
    writes: list = field(default_factory=list)
    "bulk stores that nobody has waited to be written, oldest first"
    copies: list = field(default_factory=list)
    "accesses of the threads' own asynchronous copies in flight that belong to no barrier and no group yet"
    groups: list = field(default_factory=list)
    "the same by groups that have not been waited for, oldest first"
    polled: Any = None
    "the values of its last poll, if it has done nothing else since"
    thread: Any = field(default=None, repr=False)
    ready: Callable[[], bool] | None = None
    "condition that it waits for; None: it can run"
    waits: Callable[[], str] = lambda: "nothing"

    def end(self) -> None:
        if self.products:
            raise Unfinished(f"{self.name} ended with {len(self.products)} products not waited for")
        if self.stores:
            raise Unfinished(f"{self.name} ended with {len(self.stores)} bulk stores not waited for (store_wait)")


class Schedule:
    """One program's partitions and copies, interleaved by a seed."""

    def __init__(self, seed: str, events: Iterator[int] | None = None) -> None:
        self._random = random.Random(seed)
        self._landing = self._random.choice(SPEEDS)
        self._lazy = self._random.random() < 0.5
        "whether bulk stores are written only when nothing else can advance"
        self._events = itertools.count(1) if events is None else events
        self.tasks: list[Task] = []
        self.memories: list[Any] = []
        self.flights: list[Callable[[], None]] = []
        "functions that complete the copies in flight"
        self.writes: list[Callable[[], None]] = []
        "functions that write to global memory what bulk stores have read"
        self.at_end: Callable[[], None] = lambda: None
        "final checks of the program"

    @property
    def task(self) -> Task:
        """The running task."""
        return getcurrent().task

    def event(self) -> int:
        """A new bit for `Task.known`."""
        return 1 << next(self._events)

    def start(self, name: str, warps: int, body: Callable[[], object]) -> Task:
        """Add a task that knows what the running task knows."""
        known = self.task.known if self.tasks else 0
        task = Task(name, warps, self._random.choice(SPEEDS), known)

        def whole() -> None:
            body()
            task.end()

        task.thread = greenlet(whole, parent=self._hub)
        task.thread.task = task
        self.tasks.append(task)
        return task

    def pause(self, ready: Callable[[], bool] | None = None, waits: Callable[[], str] = lambda: "nothing") -> None:
        """Let others run, and continue some time after `ready` is true."""
        task = self.task
        task.ready, task.waits, task.polled = ready, waits, None
        self._hub.switch()
        task.ready = None

    def run(self, name: str, warps: int, body: Callable[[], object]) -> None:
        """Run a program to its end; raises what `together` raises."""
        together(iter([(self, lambda: self.begin(name, warps, body))]), 1, self._random)

    def begin(self, name: str, warps: int, body: Callable[[], object]) -> None:
        """Make the program's first task."""
        self._hub = getcurrent()
        self.start(name, warps, body)

    @property
    def alive(self) -> list[Task]:
        return [task for task in self.tasks if not task.thread.dead]

    def stop(self) -> None:
        """Stop what still runs."""
        for task in self.alive:
            task.thread.throw(GreenletExit)

    def end(self) -> None:
        if self.flights:
            raise Unfinished(f"the program ended with {len(self.flights)} copies in flight")
        while self.writes:
            self.writes.pop()()
        self.at_end()

    def step(self) -> bool:
        """Advance one task or copy; False if none can advance."""
        ready = [task for task in self.alive if task.ready is None or task.ready()]
        lazy = self._lazy and (ready or self.flights)
        copies = [some for some in (self.flights, [] if lazy else self.writes) if some]
        if not ready and not copies:
            return False
        chosen = drawn([task.speed for task in ready] + [self._landing] * len(copies), self._random)
        if chosen < len(ready):
            ready[chosen].thread.switch()
        else:
            some = copies[chosen - len(ready)]
            some.pop(self._random.randrange(len(some)))()
        return True


def drawn(weights: Collection[int], order: random.Random) -> int:
    """The index that one draw by these weights gives: that of `order.choices`, in a third of its time."""
    at, reached = order.random() * sum(weights), 0
    for index, weight in enumerate(weights):
        reached += weight
        if at < reached:
            return index
    raise ValueError("no weights")


def together(programs: Iterator[tuple[Schedule, Callable[[], None]]], at_once: int, order: random.Random) -> None:
    """Run programs, `at_once` at a time, each started when there is room.

    Raises:
        Deadlock: no started task can advance.
        Unfinished: a copy is in flight at a program's end.
    """
    running: dict[Schedule, int] = {}
    try:
        while True:
            while len(running) < at_once and (found := next(programs, None)):
                schedule, begin = found
                begin()
                running[schedule] = order.choice(SPEEDS)
            if not running:
                return
            schedules = [*running]
            first = schedules[drawn(running.values(), order)]
            if not first.step() and not any(schedule.step() for schedule in schedules):
                waiting = [task for schedule in running for task in schedule.alive]
                raise Deadlock("deadlock: " + "; ".join(f"{task.name} waits for {task.waits()}" for task in waiting))
            for schedule in schedules:
                if not schedule.alive:
                    del running[schedule]
                    schedule.end()
    finally:
        for schedule in running:
            schedule.stop()

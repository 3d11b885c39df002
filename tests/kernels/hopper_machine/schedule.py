"""Who runs when: partitions as coroutines, copies that land some time later, and what each partition knows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from .mistakes import Deadlock, Unfinished

SPEEDS = (1, 4, 16)


@dataclass(eq=False)
class Task:
    """A partition: all its warps act as one.

    `known` has a bit for each access to memory that happened before what the task does next.  Barriers hand the bits
    on, between programs releases and acquires do, and an asynchronous access gets into them only by being waited for:
    two accesses are ordered if and only if the later one's task knows the earlier one, whatever the order they were
    run in here.
    """

    name: str
    warps: int
    speed: int
    known: int = field(default=0, repr=False)
    products: list = field(default_factory=list)
    "asynchronous products, oldest first, until they are waited for"
    stores: list = field(default_factory=list)
    "accesses of bulk stores, likewise"
    copies: list = field(default_factory=list)
    "accesses of the threads' own asynchronous copies that are in flight, or that no barrier and no group has yet"
    groups: list = field(default_factory=list)
    "the same by groups, oldest first, until they are waited for"
    polled: Any = None
    "what it last saw where it looks for a counter to change, and did nothing else since"
    thread: Any = field(default=None, repr=False)
    ready: Callable[[], bool] | None = None
    "what it waits for; None: nothing"
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
        self._events = itertools.count(1) if events is None else events
        self.tasks: list[Task] = []
        self.memories: list[Any] = []
        self.flights: list[Callable[[], None]] = []
        "what ends the copies in flight"
        self.at_end: Callable[[], None] = lambda: None
        "looks the program over"

    @property
    def task(self) -> Task:
        """The one that runs."""
        return getcurrent().task

    def event(self) -> int:
        """A new bit for `Task.known`."""
        return 1 << next(self._events)

    def start(self, name: str, warps: int, body: Callable[[], object]) -> Task:
        """Add a task that knows what the running one does."""
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
        """Let others run, and go on some time after `ready`."""
        task = self.task
        task.ready, task.waits, task.polled = ready, waits, None
        self._hub.switch()
        task.ready = None

    def run(self, name: str, warps: int, body: Callable[[], object]) -> None:
        """Run a program to its end; raises what `together` does."""
        together(iter([(self, lambda: self.begin(name, warps, body))]), 1, self._random)

    def begin(self, name: str, warps: int, body: Callable[[], object]) -> None:
        """Make the program's first task."""
        self._hub = getcurrent()
        self.start(name, warps, body)

    @property
    def alive(self) -> list[Task]:
        return [task for task in self.tasks if not task.thread.dead]

    def stop(self) -> None:
        """End what still runs."""
        for task in self.alive:
            task.thread.throw(GreenletExit)

    def end(self) -> None:
        if self.flights:
            raise Unfinished(f"the program ended with {len(self.flights)} copies in flight")
        self.at_end()

    def step(self) -> bool:
        """Let one task or copy go on; False where none can."""
        ready = [task for task in self.alive if task.ready is None or task.ready()]
        if not ready and not self.flights:
            return False
        speeds = [task.speed for task in ready] + [self._landing] * bool(self.flights)
        (chosen,) = self._random.choices([*ready, None][: len(speeds)], speeds)
        if chosen is not None:
            chosen.thread.switch()
        else:
            self.flights.pop(self._random.randrange(len(self.flights)))()
        return True


def together(programs: Iterator[tuple[Schedule, Callable[[], None]]], at_once: int, order: random.Random) -> None:
    """Run programs, so many at a time, each started when there is room.

    Raises:
        Deadlock: nobody of those that have started can go on.
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
            (first,) = order.choices([*running], [*running.values()])
            if not any(schedule.step() for schedule in [first, *running]):
                waiting = [task for schedule in running for task in schedule.alive]
                raise Deadlock("deadlock: " + "; ".join(f"{task.name} waits for {task.waits()}" for task in waiting))
            for schedule in [one for one in running if not one.alive]:
                del running[schedule]
                schedule.end()
    finally:
        for schedule in running:
            schedule.stop()

"""Who runs when: partitions as coroutines, bulk copies that land some time later, and what each partition knows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from .mistakes import Deadlock, Unfinished

SPEEDS = (1, 4, 16)


@dataclass(eq=False)
class Task:
    """A partition: all its warps act as one.

    `known` has a bit for each access to shared memory that happened before what the task does next.  Barriers
    hand the bits on, and an asynchronous access gets into them only by being waited for: two accesses are
    ordered if and only if the later one's task knows the earlier one, whatever the order they were run in here.
    """

    name: str
    warps: int
    speed: int
    known: int = field(default=0, repr=False)
    products: list = field(default_factory=list)
    "asynchronous products, oldest first, until they are waited for"
    stores: list = field(default_factory=list)
    "accesses of bulk stores, likewise"
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

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._landing = self._random.choice(SPEEDS)
        self._events = 0
        self.tasks: list[Task] = []
        self.memories: list[Any] = []
        self.flights: list[Callable[[], None]] = []
        "what ends the copies in flight"

    @property
    def task(self) -> Task:
        """The one that runs."""
        return getcurrent().task

    def event(self) -> int:
        """A new bit for `Task.known`."""
        self._events += 1
        return 1 << self._events

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
        task.ready, task.waits = ready, waits
        self._hub.switch()
        task.ready = None

    def run(self, name: str, warps: int, body: Callable[[], object]) -> None:
        """Run a program to its end.

        Raises:
            Deadlock: nobody can go on.
            Unfinished: a copy is in flight at the end.
        """
        self._hub = getcurrent()
        self.start(name, warps, body)
        try:
            while alive := [task for task in self.tasks if not task.thread.dead]:
                self._step(alive)
        finally:
            for task in self.tasks:
                if not task.thread.dead:
                    task.thread.throw(GreenletExit)
        if self.flights:
            raise Unfinished(f"the program ended with {len(self.flights)} bulk copies in flight")

    def _step(self, alive: list[Task]) -> None:
        ready = [task for task in alive if task.ready is None or task.ready()]
        if not ready and not self.flights:
            raise Deadlock("deadlock: " + "; ".join(f"{task.name} waits for {task.waits()}" for task in alive))
        speeds = [task.speed for task in ready] + [self._landing] * bool(self.flights)
        (chosen,) = self._random.choices([*ready, None][:len(speeds)], speeds)
        if chosen is not None:
            chosen.thread.switch()
        else:
            self.flights.pop(self._random.randrange(len(self.flights)))()

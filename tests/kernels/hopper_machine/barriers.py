"""mbarriers: arrivals, expected bytes, phases."""

from __future__ import annotations

from .memory import View
from .mistakes import BarrierMisuse
from .schedule import Schedule


class Barrier:
    """One mbarrier, from `init` on.

    A phase ends when all arrivals and all expected bytes have come.  A task that waits for it then knows all accesses that
    the arriving tasks knew, and the copies that completed.
    """

    def __init__(self, schedule: Schedule, view: View, count: int) -> None:
        self.view, self.count = view, count
        self.phase = 0
        "number of the open phase: how many have ended"
        self.pending = count
        self.bytes = 0
        self.known = 0
        self._gathered = 0
        self.made = schedule.event()
        schedule.task.known |= self.made

    def __str__(self) -> str:
        return (
            f"{self.view} (phase {self.phase} is open: {self.pending} of {self.count} arrivals and {self.bytes} "
            f"bytes to come)"
        )

    def passes(self, parity: int) -> bool:
        """Whether the last phase with that parity has ended; before the first phase, an imagined one with parity 1 has."""
        return self.phase % 2 != parity

    def arrive(self, count: int, known: int) -> None:
        if count > self.pending:
            raise BarrierMisuse(f"more arrivals than {self.view} takes: {count} more; {self}")
        self.pending -= count
        self._gathered |= known
        self._end()

    def expect(self, size: int, known: int) -> None:
        """Expect more bytes, and arrive once."""
        self.bytes += size
        self.arrive(1, known)

    def land(self, size: int, bit: int) -> None:
        self.bytes -= size
        self._gathered |= bit
        self._end()

    def _end(self) -> None:
        if self.pending:
            return
        if self.bytes < 0:
            raise BarrierMisuse(f"{-self.bytes} bytes more than {self.view} expected in phase {self.phase}")
        if not self.bytes:
            self.phase += 1
            self.pending = self.count
            self.known |= self._gathered
            self._gathered = 0


def make(view: View, count: int) -> None:
    """`mbarrier.init`."""
    memory = view.memory
    memory.schedule.pause()
    if view.begin in memory.barriers:
        raise BarrierMisuse(f"{view} is made a second time")
    if view.numel != 1 or view.data.element_size() != 8 or count < 1:
        raise BarrierMisuse(f"{view}: a barrier is one int64 and takes at least one arrival, not {count}")
    memory.barriers[view.begin] = Barrier(memory.schedule, view, count)


def invalidate(view: View) -> None:
    """`mbarrier.invalidate`."""
    made(view)
    del view.memory.barriers[view.begin]


def made(view: View) -> Barrier:
    """The barrier that was initialized at this address."""
    barrier = view.memory.barriers.get(view.begin)
    if barrier is None or not barrier.made & view.memory.schedule.task.known:
        raise BarrierMisuse(f"{view} is used before its init" + " is known here" * (barrier is not None))
    return barrier


def arrive(view: View, *, count: int = 1, pred: bool = True, from_cta: None = None) -> None:
    """`mbarrier.arrive`."""
    view.memory.schedule.pause()
    if pred:
        made(view).arrive(count, view.memory.schedule.task.known)


def expect(view: View, bytes_per_cta: int = 0, pred: bool = True, *, bytes: int = 0, from_cta: None = None) -> None:
    """`mbarrier.expect`, which is also an arrival; Triton 3.6 calls the argument `bytes`."""
    view.memory.schedule.pause()
    if pred:
        made(view).expect(bytes_per_cta or bytes, view.memory.schedule.task.known)


def wait(view: View, phase: int, pred: bool = True, deps: tuple = ()) -> None:
    """`mbarrier.wait`."""
    if not pred:
        return
    if phase not in (0, 1):
        raise BarrierMisuse(f"{view}: a wait is for parity 0 or 1, not {phase}")
    barrier = made(view)
    schedule = view.memory.schedule
    schedule.pause(lambda: barrier.passes(phase), lambda: f"parity {int(phase)} of {barrier}")
    schedule.task.known |= barrier.known

"""Groups dealt from one queue to several stations: whoever is free takes the next, the longest first.

A group is measured by one station from start to end.  So are the replicates of a case: their spread is to be that of
processes, not of GPUs.  When a station is lost its group goes back into the queue, once: a group that was lost twice
is `failed`, because it may be what loses them.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from attnbench.record import PlannedGroup, Record, Settings, Status
from attnbench.sweep.device_worker import Stopped
from attnbench.sweep.station import Measured, News, Station, StationLost

MOST_STATIONS_LOST = 2
"""Stations that a group may lose before its backends are blamed."""


class Queue:
    """Groups that wait, those that are being measured, and where cases belong.

    Args:
        groups: in the order in which they are to be begun.
    """

    def __init__(self, groups: Iterable[PlannedGroup]) -> None:
        self._waiting = list(groups)
        self._in_flight: dict[str, PlannedGroup] = {}
        "by station"
        self._homes: dict[str, str] = {}
        "the station of each case that was begun"
        self._stopped = False
        self._changed = threading.Condition()

    @property
    def stopped(self) -> bool:
        """Nobody is to begin another group."""
        return self._stopped

    @property
    def waiting(self) -> int:
        """Groups that nobody has begun, or not to the end."""
        return len(self._waiting)

    def take(self, station: str) -> PlannedGroup | None:
        """The next group for a station, waited for while one in flight may come back; None when nothing is left."""
        with self._changed:
            while not self._stopped:
                for group in self._waiting:
                    if self._homes.setdefault(group.case_id, station) == station:
                        self._waiting.remove(group)
                        self._in_flight[station] = group
                        return group
                if not self._waiting and not self._in_flight:
                    return None
                self._changed.wait()
            return None

    def done(self, station: str) -> None:
        """The group that a station took is measured, or given up."""
        with self._changed:
            del self._in_flight[station]
            self._changed.notify_all()

    def lost(self, station: str, *, again: bool) -> None:
        """A station is gone: its cases are anybody's, and the group it was at waits again unless it is given up."""
        with self._changed:
            group = self._in_flight.pop(station, None)
            if group is not None and again:
                self._waiting.insert(0, group)
            self._homes = {case: home for case, home in self._homes.items() if home != station}
            self._changed.notify_all()

    def stop(self) -> None:
        """Nobody begins another group, and nobody waits for one."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Finished:
    """A group has its records."""

    group: PlannedGroup
    measured: Measured


@dataclass(frozen=True, slots=True)
class Lost:
    """A station measures no more."""

    error: StationLost


@dataclass(frozen=True, slots=True)
class Over:
    """A station has nothing more to do."""

    error: BaseException | None = None
    "a mistake of ours, which ends the run"


Message = News | Finished | Lost | Over
Handle = Callable[[str, Message], None]


def in_order(groups: Sequence[PlannedGroup], seconds: Mapping[str, float]) -> list[PlannedGroup]:
    """Groups for several stations: replicate by replicate, the longest first, so that all end at about one time."""
    return sorted(groups, key=lambda group: (group.replicate, -seconds.get(group.group, 0.0)))


def deal(groups: Sequence[PlannedGroup], settings: Settings, stations: Sequence[Station], handle: Handle) -> None:
    """Have groups measured by stations that are open.

    Args:
        groups: in the order in which they are begun.
        settings: of the run.
        stations: at least one; with several each has a thread here.
        handle: told in this thread what happens, with the name of the station.

    Raises:
        StationLost: no station is left, and groups are.
    """
    queue = Queue(groups)
    dealer = _Dealer(queue, settings)
    if len(stations) == 1:
        dealer.work(stations[0], handle)
    else:
        _in_threads(dealer, stations, handle)
    if queue.waiting and dealer.loss:
        raise dealer.loss


def _in_threads(dealer: _Dealer, stations: Sequence[Station], handle: Handle) -> None:
    inbox: SimpleQueue[tuple[str, Message]] = SimpleQueue()

    def work(station: Station) -> None:
        error: BaseException | None = None
        try:
            dealer.work(station, lambda name, message: inbox.put((name, message)))
        except BaseException as found:  # handed to the thread that waits
            error = found
        inbox.put((station.name, Over(error)))

    # As daemons they do not outlive a second Ctrl-C; a worker dies with the process that started it.
    threads = [threading.Thread(target=work, args=(station,), daemon=True) for station in stations]
    for thread in threads:
        thread.start()
    working = len(threads)
    try:
        while working:
            name, message = inbox.get()
            if isinstance(message, Over):
                working -= 1
                if message.error is not None:
                    raise message.error
            else:
                handle(name, message)
    finally:
        dealer.queue.stop()
        if working:
            for station in stations:
                station.stop()
        for thread in threads:
            thread.join()


class _Dealer:
    """What the threads of a deal share."""

    def __init__(self, queue: Queue, settings: Settings) -> None:
        self.queue, self.settings = queue, settings
        self.loss: StationLost | None = None
        "the last one"
        self._losses: dict[str, list[str]] = {}
        "reasons, by group"

    def work(self, station: Station, handle: Handle) -> None:
        """Measure groups until none is left, or the station is lost."""
        while (group := self.queue.take(station.name)) is not None:
            try:
                measured = station.measure(group, self.settings, lambda news: handle(station.name, news))
            except Stopped:
                return
            except StationLost as error:
                if not self.queue.stopped:
                    self._lost(station, group, error, handle)
                return
            handle(station.name, Finished(group, measured))
            self.queue.done(station.name)

    def _lost(self, station: Station, group: PlannedGroup, error: StationLost, handle: Handle) -> None:
        reasons = self._losses.setdefault(group.group, [])
        reasons += [str(error)] if error.measuring else []
        given_up = len(reasons) == MOST_STATIONS_LOST
        handle(station.name, Lost(error))
        if given_up:
            handle(station.name, Finished(group, _given_up(group, reasons)))
        self.queue.lost(station.name, again=not given_up)
        self.loss = error


def _given_up(group: PlannedGroup, reasons: Sequence[str]) -> Measured:
    """Records of a group that stations were lost with."""
    reason = f"{len(reasons)} stations were lost while it was measured: {'; '.join(dict.fromkeys(reasons))}"
    blank = Record(
        workload=group.workload,
        case=group.case,
        case_id=group.case_id,
        group=group.group,
        backend="",
        replicate=group.replicate,
        status=Status.CRASHED,
        reason=reason,
    )
    return Measured(tuple(dataclasses.replace(blank, backend=name) for name in group.backends), (), 0.0)

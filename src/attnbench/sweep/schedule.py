"""Gives groups from one queue to several executors: a free one takes the next group, the longest first.

One executor measures a group from start to end, and all replicates of a case, because their spread has to be that of
processes, not of GPUs.  When an executor is lost its group returns to the queue once: a group that was lost twice
is `failed`, because it may be the cause.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue

from attnbench.record import PlannedGroup, Record, Settings, Status
from attnbench.sweep.device_worker import Stopped
from attnbench.sweep.executor import Executor, ExecutorLost, Measured, Progress

MOST_EXECUTORS_LOST = 2
"""Executors that may be lost with a group before its backends are blamed."""


class Queue:
    """Groups that wait, groups that are being measured, and the executor of each case.

    Args:
        groups: in the order in which they are started.
    """

    def __init__(self, groups: Iterable[PlannedGroup]) -> None:
        self._waiting = list(groups)
        self._in_flight: dict[str, PlannedGroup] = {}
        "by executor"
        self._homes: dict[str, str] = {}
        "the executor of each case that was started"
        self._stopped = False
        self._changed = threading.Condition()

    @property
    def stopped(self) -> bool:
        """Whether no executor may start another group."""
        return self._stopped

    @property
    def waiting(self) -> int:
        """Number of groups not started, or not finished."""
        return len(self._waiting)

    def take(self, executor: str) -> PlannedGroup | None:
        """Return the next group for an executor, waiting while one may be returned; None when nothing is left."""
        with self._changed:
            while not self._stopped:
                for group in self._waiting:
                    if self._homes.setdefault(group.case_id, executor) == executor:
                        self._waiting.remove(group)
                        self._in_flight[executor] = group
                        return group
                if not self._waiting and not self._in_flight:
                    return None
                self._changed.wait()
            return None

    def done(self, executor: str) -> None:
        """Remove an executor's group, which is measured or given up."""
        with self._changed:
            del self._in_flight[executor]
            self._changed.notify_all()

    def lost(self, executor: str, *, again: bool) -> None:
        """Remove an executor: its cases may go to any other, and its group waits again unless it is given up."""
        with self._changed:
            group = self._in_flight.pop(executor, None)
            if group is not None and again:
                self._waiting.insert(0, group)
            self._homes = {case: home for case, home in self._homes.items() if home != executor}
            self._changed.notify_all()

    def stop(self) -> None:
        """Make `take` return None at once, for all executors."""
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
    """An executor cannot measure any more."""

    error: ExecutorLost


@dataclass(frozen=True, slots=True)
class Over:
    """An executor has nothing more to do."""

    error: BaseException | None = None
    "an error of ours, which ends the run"


Message = Progress | Finished | Lost | Over
Handle = Callable[[str, Message], None]


def in_order(groups: Sequence[PlannedGroup], seconds: Mapping[str, float]) -> list[PlannedGroup]:
    """Order groups for several executors: by replicate, then longest first, so that all finish at the same time."""
    return sorted(groups, key=lambda group: (group.replicate, -seconds.get(group.group, 0.0)))


def run_groups(queue: Queue, settings: Settings, executors: Sequence[Executor], handle: Handle) -> None:
    """Measure groups with open executors, until none is left or the queue is stopped.

    Args:
        queue: groups in the order in which they are started.
        settings: of the run.
        executors: at least one; if several, each has a thread.
        handle: called in the calling thread with the executor's name and its messages.

    Raises:
        ExecutorLost: no executor is left, but groups are.
    """
    dealer = _Dealer(queue, settings)
    if len(executors) == 1:
        dealer.work(executors[0], handle)
    else:
        _in_threads(dealer, executors, handle)
    if queue.waiting and dealer.loss:
        raise dealer.loss


def _in_threads(dealer: _Dealer, executors: Sequence[Executor], handle: Handle) -> None:
    inbox: SimpleQueue[tuple[str, Message]] = SimpleQueue()

    def work(executor: Executor) -> None:
        error: BaseException | None = None
        try:
            dealer.work(executor, lambda name, message: inbox.put((name, message)))
        except BaseException as found:  # raised again in the calling thread
            error = found
        inbox.put((executor.name, Over(error)))

    # Daemon threads do not outlive a second Ctrl-C; a worker dies with the process that started it.
    threads = [threading.Thread(target=work, args=(executor,), daemon=True) for executor in executors]
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
            for executor in executors:
                executor.stop()
        for thread in threads:
            thread.join()


def close_all(executors: Sequence[Executor]) -> None:
    """Close all executors at the same time, even if closing one fails: ending the worker of a GPU takes a while."""
    with ExitStack() as waiting:
        if len(executors) > 1:
            pool = waiting.enter_context(ThreadPoolExecutor(len(executors), thread_name_prefix="close"))
            for executor in executors:
                waiting.callback(pool.submit(executor.close).result)
        else:
            for executor in executors:
                executor.close()


class _Dealer:
    """State shared by the threads of a schedule."""

    def __init__(self, queue: Queue, settings: Settings) -> None:
        self.queue, self.settings = queue, settings
        self.loss: ExecutorLost | None = None
        "the last one"
        self._losses: dict[str, list[str]] = {}
        "reasons, by group"

    def work(self, executor: Executor, handle: Handle) -> None:
        """Measure groups until none is left, or the executor is lost."""
        while (group := self.queue.take(executor.name)) is not None:
            try:
                measured = executor.measure(group, self.settings, lambda news: handle(executor.name, news))
            except Stopped:
                return
            except ExecutorLost as error:
                if not self.queue.stopped:
                    self._lost(executor, group, error, handle)
                return
            handle(executor.name, Finished(group, measured))
            self.queue.done(executor.name)

    def _lost(self, executor: Executor, group: PlannedGroup, error: ExecutorLost, handle: Handle) -> None:
        reasons = self._losses.setdefault(group.group, [])
        reasons += [str(error)] if error.measuring else []
        given_up = len(reasons) == MOST_EXECUTORS_LOST
        handle(executor.name, Lost(error))
        if given_up:
            handle(executor.name, Finished(group, _given_up(group, reasons)))
        self.queue.lost(executor.name, again=not given_up)
        self.loss = error


def _given_up(group: PlannedGroup, reasons: Sequence[str]) -> Measured:
    """Return the records of a group with which executors were lost."""
    reason = f"{len(reasons)} executors were lost while it was measured: {'; '.join(dict.fromkeys(reasons))}"
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

"""Carries out a run: gives groups to executors, collects records, writes after each group, resumes after a stop.

`sweep.schedule` decides which executor measures which group next; `sweep.executor` measures a group; there,
`sweep.group` decides which backend to blame for a failure or a lost worker, and `sweep.device_worker` carries out its
requests.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

from attnbench.errors import NothingToRun, RunFileError, UsageError
from attnbench.machine.clocks import locked_clocks
from attnbench.machine.device import Device
from attnbench.record import Environment, PlannedGroup, Record, Run, Settings, Status
from attnbench.store.derive import derive
from attnbench.store.files import is_file, remove_drafts
from attnbench.store.runfile import Writer, read
from attnbench.suites.estimate import estimate
from attnbench.sweep.ahead import CompiledAhead, default_jobs, groups_ahead
from attnbench.sweep.executor import DeviceExecutor, Executor, ExecutorLost, Measured, Progress
from attnbench.sweep.interruption import IN_ORDER, Interruption
from attnbench.sweep.run_lock import sole_writer
from attnbench.sweep.schedule import Finished, Lost, Message, Queue, close_all, in_order, run_groups
from attnbench.sweep.teams import executors_on
from attnbench.worker.process import cut_short, ended_from_outside


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a run, for a progress bar."""

    kind: str
    """start, waiting (for a GPU that somebody else has, in `text`), activity, record, group, lost (an executor of several,
    in `text`), unwritten (the run file, in `text`), ending (after a signal), done"""
    text: str = ""
    group: str | None = None
    backend: str | None = None
    done: int = 0
    "records written so far, out of `total`"
    total: int = 0
    sampling_s: float = 0.0
    "wall time spent sampling so far"
    record: Record | None = None
    run: Run | None = None
    "for start, group, ending and done: the run with all its records so far"


OnEvent = Callable[[Event], None]


def execute(
    run: Run,
    *,
    path: Path | None = None,
    backend_files: Sequence[str] = (),
    on_event: OnEvent = lambda event: None,
    executors: Sequence[Executor] = (),
    jobs: int | None = None,
) -> Run:
    """Carry out `run.plan`; existing records of `run` are kept and not measured again.

    Args:
        run: plan and settings; `settings.device` is cpu, cuda or cuda:N.
        path: run file, written after every group; None writes nothing.
        backend_files: paths of --backends files.
        on_event: called with each event, in this thread.
        executors: that measure the groups; empty: one for `settings.device`.
        jobs: processes that compile kernels ahead; 0 leaves that to first calls; None: one per core.

    Raises:
        NothingToRun: no worker could be started, or no executor is left.
        UsageError: the run file cannot be written; the event `done` has the run.
        Unavailable: clocks were to be locked but may not be, or another run has the GPU.
    """
    with ExitStack() as closing:
        execution = closing.enter_context(Execution(run, path, backend_files, on_event, executors))
        if run.settings.lock_clocks:
            for executor in execution.executors:
                own = executor.devices if isinstance(executor, DeviceExecutor) else [Device.parse(executor.name)]
                for device in own:
                    closing.enter_context(locked_clocks(run.settings.lock_clocks, device))
        closing.enter_context(execution.compiled_ahead(default_jobs() if jobs is None else jobs))
        return execution.carry_out()


class Execution(AbstractContextManager["Execution"]):
    """A run in progress: its records so far, and the executors that measure its groups.

    `execute` carries out a plan.  A search that chooses its next group by the last result calls `one` for each group.
    """

    def __init__(
        self,
        run: Run,
        path: Path | None = None,
        files: Sequence[str] = (),
        on_event: OnEvent = lambda event: None,
        executors: Sequence[Executor] = (),
    ) -> None:
        self.run, self.files, self.on_event = run, tuple(files), on_event
        self.writer = Writer(path) if path else None
        self._lock = ExitStack()
        "of the run file"
        self._asked: Sequence[Executor] = executors or executors_on("attnbench", run, None, self.files)
        self.executors = self._asked
        "those that could be opened"
        self.total = sum(len(group.backends) for group in run.plan)
        self.sampling_s = 0.0
        "wall time spent sampling so far, summed over executors"
        self._known: dict[str, set[str]] = {}
        "backends that have a record, by group being measured"
        self._standing: dict[str, tuple[Record, ...]] = {}
        "records in the file of groups that are measured again, by group; they are kept until there are new ones"
        self._interruption: Interruption | None = None
        "set while groups are measured"
        self._said_ending = self._said_unwritten = False
        self._order = {group.group: number for number, group in enumerate(run.plan)}

    def __enter__(self) -> Execution:
        there: list[Executor] = []
        lost: ExecutorLost | None = None
        if self.writer is not None:
            self._lock.enter_context(sole_writer(self.writer.path))
            remove_drafts(self.writer.path)
        try:
            # In a fixed order: otherwise two runs could wait for each other's GPUs for ever.
            for executor in sorted(self._asked, key=lambda one: one.order()):
                try:
                    executor.open(lambda progress: self._emit("waiting", text=progress.text))
                    there.append(executor)
                except ExecutorLost as error:
                    lost = error
                    self._handle(executor.name, Lost(error))
            if lost is not None and not there:
                raise lost
        except BaseException:
            self._close()
            raise
        self.executors = there
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        with self._lock:
            close_all(self._asked)

    def one(self, group: PlannedGroup, settings: Settings) -> tuple[Record, ...]:
        """Measure a group with settings of its own; the run keeps no record of it.

        Raises:
            NothingToRun: no worker could be started.
        """
        [executor] = self.executors
        self.run = dataclasses.replace(self.run, settings=settings)
        measured = executor.measure(group, settings, partial(self._on_progress, executor.name))
        return self._taken(group, measured)

    def environment(self) -> Environment:
        """Start the worker of a single device, and return its environment.

        Raises:
            NothingToRun: it could not be started.
        """
        [executor] = self.executors
        assert isinstance(executor, DeviceExecutor)
        found = executor.worker.environment()
        self._number(found)
        return found

    @contextmanager
    def compiled_ahead(self, jobs: int) -> Iterator[None]:
        """While open, have `jobs` processes compile the plan's kernels ahead of its groups."""
        local = [one for one in self.executors if isinstance(one, DeviceExecutor) and one.device.on_gpu]
        groups = groups_ahead(self._left(), self.files) if local and jobs else []
        if not groups:
            yield
            return
        together, sampled = len(local) > 1, self.run.settings.measure
        with CompiledAhead(groups, local[0].device, self.files, jobs=jobs, together=together, sampled=sampled) as ahead:
            for executor in local:
                executor.ahead = ahead
            yield

    def _left(self) -> list[PlannedGroup]:
        """Return the groups whose records are incomplete."""
        have = {(record.group, record.backend) for record in self.run.records}
        return [group for group in self.run.plan if any((group.group, name) not in have for name in group.backends)]

    def carry_out(self) -> Run:
        """Measure the groups of the plan that are not measured yet."""
        self._emit("start")
        left = self._left()
        # A group is one comparison: what was measured before the stop is measured again.
        again = {group.group for group in left}
        kept = tuple(record for record in self.run.records if record.group not in again)
        self._standing = self._in_the_file(again)
        self.run = dataclasses.replace(self.run, records=kept)
        if left and len(self.executors) > 1:
            left = in_order(left, estimate(self.run, files=self.files).groups)
        if left:
            self._run_groups(left)
        try:
            self._write()
        finally:
            self._emit("done")
        return self.run

    def _in_the_file(self, groups: Collection[str]) -> dict[str, tuple[Record, ...]]:
        """Return the records of some groups that an earlier part of this run has written."""
        if self.writer is None or not is_file(self.writer.path):
            return {}
        try:
            there = read(self.writer.path)
        except RunFileError:  # the file will be replaced
            return {}
        mine = [one for one in there.records if there.id == self.run.id and one.group in groups]
        return {name: tuple(one for one in mine if one.group == name) for name in {one.group for one in mine}}

    def _run_groups(self, groups: Sequence[PlannedGroup]) -> None:
        queue = Queue(groups)

        def on_signal(name: str, at_once: bool) -> bool:
            queue.stop()
            in_hand = [executor.interrupt(name, at_once=at_once) for executor in self.executors]
            return any(in_hand)

        try:
            with Interruption(on_signal) as self._interruption:
                run_groups(queue, self.run.settings, self.executors, self._handle)
            if self._interruption.number is not None:
                self.run = self._whole()
                self._emit("ending")
                self._interruption.pass_on()
        except ExecutorLost as error:
            kept, several = len({record.group for record in self.run.records}), len(self.executors) > 1
            told = f"attnbench run: all {len(self.executors)} executors are lost; the last: {error}"
            words = [told if several else str(error)]
            if kept and self.writer is not None:
                place = shlex.quote(str(self.writer.path))
                words += [f"{kept} of {len(self.run.plan)} groups are kept", f"to finish: --resume {place}"]
            raise NothingToRun("; ".join(words)) from None

    # ── messages of executors (`sweep.schedule`), always in this thread ─────────────────────────────

    def _handle(self, executor: str, message: Message) -> None:
        if isinstance(message, Progress):
            self._on_progress(executor, message)
        elif isinstance(message, Finished):
            self._keep(message.group, message.measured)
        elif isinstance(message, Lost) and len(self.executors) > 1:
            self._emit("lost", text=f"{executor} is lost: {message.error}")

    def _on_progress(self, executor: str, progress: Progress) -> None:
        ending = self._interruption is not None and self._interruption.count == IN_ORDER
        if ending and not self._said_ending:
            self._said_ending = True
            self._emit("ending", text="ending the round in hand; the same signal again ends at once")
        text = f"{executor} {progress.text}".strip() if len(self.executors) > 1 else progress.text
        kind = "activity" if progress.record is None else "record"
        self._emit(kind, text=text, group=progress.group, backend=progress.backend, record=progress.record)

    def _keep(self, group: PlannedGroup, measured: Measured) -> None:
        """Add the records of a group to the run, in the order of the plan."""
        taken = self._taken(group, measured)
        nothing = any(map(ended_from_outside, taken)) and all(one.status is Status.SKIPPED for one in taken)
        if nothing and (group.group in self._standing or not self._whole().records):
            return  # an early end removes no records, and leaves no file without any
        self._standing.pop(group.group, None)
        self.run = self._with(taken)
        try:
            self._write()
        except UsageError as error:  # a full disk may have room after the next group
            if not self._said_unwritten:
                self._said_unwritten = True
                self._emit("unwritten", text=f"{error}; measuring goes on, and it is tried again after each group")
        self._emit("group", group=group)

    def _with(self, records: Iterable[Record]) -> Run:
        """Return the run with further records, in the order of the plan."""
        those = sorted([*self.run.records, *records], key=lambda record: self._order[record.group])
        return dataclasses.replace(self.run, records=tuple(those))

    def _whole(self) -> Run:
        """Return the run, including the old records of groups to be measured again."""
        return self._with(record for records in self._standing.values() for record in records)

    def _taken(self, group: PlannedGroup, measured: Measured) -> tuple[Record, ...]:
        """Return the records of a group with their statistics, and with the run's indices of environments."""
        self._known.pop(group.group, None)
        self.sampling_s += measured.sampling_s
        numbers = [self._number(one) for one in measured.environments]
        records = [
            one if one.environment is None else dataclasses.replace(one, environment=numbers[one.environment])
            for one in measured.records
        ]
        return derive(dataclasses.replace(self.run, records=tuple(records))).records

    def _number(self, environment: Environment) -> int:
        """Return the index of an environment in the run; add it if it is new."""
        if environment not in self.run.environments:
            self.run = dataclasses.replace(self.run, environments=(*self.run.environments, environment))
        return self.run.environments.index(environment)

    # ── events and writing ─────────────────────────────────────────────────────────────────────────

    def _write(self) -> None:
        if self.writer:
            self.writer.write(self._whole())

    def _emit(
        self,
        kind: str,
        *,
        text: str = "",
        group: PlannedGroup | None = None,
        backend: str | None = None,
        record: Record | None = None,
    ) -> None:
        if record is not None:
            self._known.setdefault(record.group, set()).add(record.backend)
        self.on_event(
            Event(
                kind,
                text,
                group.group if group else None,
                backend or (record and record.backend) or None,
                len(self.run.records) + sum(map(len, self._known.values())),
                self.total,
                self.sampling_s,
                record,
                self.run if kind in ("start", "group", "ending", "done") else None,
            )
        )


def without_interrupted(run: Run) -> Run:
    """Return `run` without records that a signal cut short: they are to be measured again."""
    kept = tuple(one for one in run.records if not (ended_from_outside(one) or cut_short(one)))
    return dataclasses.replace(run, records=kept)

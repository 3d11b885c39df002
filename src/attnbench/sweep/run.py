"""The schedule of a run: which groups are measured, in which order; written after each, resumed where it stopped.

`sweep.group` measures one group and decides who is to blame when a backend fails or a worker is lost;
`sweep.device_worker` carries its requests out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from attnbench.machine.clocks import locked_clocks
from attnbench.machine.device import Device
from attnbench.record import Environment, PlannedGroup, Record, Run, Settings
from attnbench.store.derive import derive
from attnbench.store.files import remove_drafts
from attnbench.store.runfile import Writer
from attnbench.sweep.device_worker import DeviceWorker
from attnbench.sweep.group import ConfirmedFailures, GroupMeasurement
from attnbench.worker.process import ended_from_outside


@dataclass(frozen=True, slots=True)
class Event:
    """News of a run, for a progress bar."""

    kind: str
    "start, word, record, group, done"
    text: str = ""
    group: str | None = None
    backend: str | None = None
    done: int = 0
    "records written so far, of `total`"
    total: int = 0
    sampling_s: float = 0.0
    "wall time spent taking samples, so far"
    record: Record | None = None
    run: Run | None = None
    "of start, group and done: the run with all its records so far"


OnEvent = Callable[[Event], None]


def execute(
    run: Run, *, path: Path | None = None, backend_files: Sequence[str] = (), on_event: OnEvent = lambda event: None
) -> Run:
    """Carry out `run.plan`; records that `run` already has are kept and not measured again.

    Args:
        run: plan and settings; `settings.device` is cpu, cuda or cuda:N.
        path: run file, written after every group; None writes nothing.
        backend_files: paths of --backends files.
        on_event: called with each event.

    Raises:
        NothingToRun: no worker could be started.
        Unavailable: clocks were to be locked and may not be.
    """
    with ExitStack() as closing:
        if run.settings.lock_clocks:
            closing.enter_context(locked_clocks(run.settings.lock_clocks, Device.parse(run.settings.device)))
        return closing.enter_context(Execution(run, path, backend_files, on_event)).carry_out()


class Execution(AbstractContextManager["Execution"]):
    """A run in progress: its schedule, its records so far, and the worker of its device.

    `execute` carries out a plan.  A search that chooses its next group by the last result asks for `one` at a time.
    """

    def __init__(
        self, run: Run, path: Path | None = None, files: Sequence[str] = (), on_event: OnEvent = lambda event: None
    ) -> None:
        self.run, self.files, self.on_event = run, files, on_event
        self.writer = Writer(path) if path else None
        if path:
            remove_drafts(path)
        self.worker = DeviceWorker(Device.parse(run.settings.device), files, self)
        self.total = sum(len(group.backends) for group in run.plan)
        self.known_failures = ConfirmedFailures()
        self.known: set[str] = set()
        "backends of the group in flight that have a record"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.worker.close()

    @property
    def sampling_s(self) -> float:
        """Wall time spent taking samples, so far."""
        return self.worker.sampling_s

    def one(self, group: PlannedGroup, settings: Settings) -> tuple[Record, ...]:
        """Measure a group by settings of its own; the run keeps no record of it.

        Raises:
            NothingToRun: no worker could be started.
        """
        self.run = dataclasses.replace(self.run, settings=settings, records=())
        self._group(group)
        records, self.run = self.run.records, dataclasses.replace(self.run, records=())
        return records

    def environment(self) -> Environment:
        """What the worker runs on; starts it.

        Raises:
            NothingToRun: it could not be started.
        """
        index = self.worker.environment()
        assert index is not None  # a process that is ready has said where it runs
        return self.run.environments[index]

    def carry_out(self) -> Run:
        """Measure what of the plan is not measured yet."""
        self._emit("start")
        have = {(record.group, record.backend) for record in self.run.records}
        replicate = 0
        for group in self.run.plan:
            if group.replicate != replicate:
                self.worker.close()  # replicates are of fresh processes
                replicate = group.replicate
            missing = tuple(name for name in group.backends if (group.group, name) not in have)
            if missing:
                # A group is one comparison: what was measured before the stop is measured again.
                kept = [record for record in self.run.records if record.group != group.group]
                self.run = dataclasses.replace(self.run, records=tuple(kept))
                self._group(group)
                self._emit("group", group=group)
        self._write()
        self._emit("done")
        return self.run

    # ── one group ──────────────────────────────────────────────────────────────────────────────────

    def _group(self, group: PlannedGroup) -> None:
        self.known = set()
        records = GroupMeasurement(self.worker, group, self.run.settings, self.known_failures).records()
        derived = derive(dataclasses.replace(self.run, records=records)).records
        self.run = dataclasses.replace(self.run, records=(*self.run.records, *derived))
        self.known = set()
        self._write()

    # ── what the worker says (`sweep.device_worker.Listener`) ──────────────────────────────────────

    def environment_index(self, environment: Environment | None) -> int | None:
        """Number of an environment in the run, which it joins; of None the last one known."""
        if environment is not None and environment not in self.run.environments:
            self.run = dataclasses.replace(self.run, environments=(*self.run.environments, environment))
        there = self.run.environments
        return there.index(environment) if environment is not None else len(there) - 1 if there else None

    def on_activity(self, text: str, group: PlannedGroup | None = None, backend: str | None = None) -> None:
        """Pass on what a worker is doing."""
        self._emit("word", text=text, group=group, backend=backend)

    def on_record(self, group: PlannedGroup, record: Record) -> None:
        """Pass on a record of the group in flight."""
        self._emit("record", group=group, record=record)

    # ── events and writing ─────────────────────────────────────────────────────────────────────────

    def _write(self) -> None:
        if self.writer:
            self.writer.write(self.run)

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
            self.known.add(record.backend)
        self.on_event(
            Event(
                kind,
                text,
                group.group if group else None,
                backend or (record and record.backend) or None,
                len(self.run.records) + len(self.known),
                self.total,
                self.sampling_s,
                record,
                self.run if kind in ("start", "group", "done") else None,
            )
        )


def without_interrupted(run: Run) -> Run:
    """`run` without the records of workers that a signal from outside ended: they are to be measured again."""
    return dataclasses.replace(run, records=tuple(one for one in run.records if not ended_from_outside(one)))

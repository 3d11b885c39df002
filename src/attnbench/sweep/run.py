"""A run carried out: group after group in a worker, written after each, resumed where it stopped.

`sweep.group` says what happens when a backend fails or its worker is lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from attnbench.check.globals import is_stuck
from attnbench.errors import NothingToRun
from attnbench.machine.clocks import locked_clocks
from attnbench.record import Environment, PlannedGroup, Record, Run, Settings, Status
from attnbench.store.derive import derive
from attnbench.store.files import remove_drafts
from attnbench.store.runfile import Writer
from attnbench.sweep.group import Confirmed, GroupOnItsWay, Sitting, accepted
from attnbench.worker.blame import HARNESS, Word
from attnbench.worker.outcome import repro
from attnbench.worker.private import without_paths
from attnbench.worker.process import Loss, Worker


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
        on_event: told what happens.

    Raises:
        NothingToRun: no worker could be started.
        Unavailable: clocks were to be locked and may not be.
    """
    with ExitStack() as closing:
        if run.settings.lock_clocks:
            closing.enter_context(locked_clocks(run.settings.lock_clocks, run.settings.device))
        return closing.enter_context(Execution(run, path, backend_files, on_event)).carry_out()


class Execution(AbstractContextManager["Execution"]):
    """The worker of a run and what it has measured.

    `execute` is for a plan; who thinks of the next group only when he knows the last one asks for `one` at a time.
    """

    def __init__(
        self, run: Run, path: Path | None = None, files: Sequence[str] = (),
        on_event: OnEvent = lambda event: None,
    ) -> None:
        self.run, self.files, self.on_event = run, files, on_event
        self.writer = Writer(path) if path else None
        if path:
            remove_drafts(path)
        self.worker: Worker | None = None
        self.total = sum(len(group.backends) for group in run.plan)
        self.sampling_s = 0.0
        self.touched: set[str] = set()
        "backends that the worker was asked for"
        self.confirmed = Confirmed()
        self.known: set[str] = set()
        "backends of the group in flight that have a record"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_worker()

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
        worker = self._ready_worker()
        if isinstance(worker, Loss):
            raise NothingToRun(f"worker: device={self.run.settings.device} cannot be measured; {worker.reason}")
        index = self._environment_index(worker)
        return self.run.environments[index]

    def carry_out(self) -> Run:
        """Measure what of the plan is not measured yet."""
        self._tell("start")
        have = {(record.group, record.backend) for record in self.run.records}
        replicate = 0
        for group in self.run.plan:
            if group.replicate != replicate:
                self._end_worker()  # replicates are of fresh processes
                replicate = group.replicate
            missing = tuple(name for name in group.backends if (group.group, name) not in have)
            if missing:
                # A group is one comparison: what was measured before the stop is measured again.
                kept = [record for record in self.run.records if record.group != group.group]
                self.run = dataclasses.replace(self.run, records=tuple(kept))
                self._group(group)
                self._tell("group", group=group)
        self._write()
        self._tell("done")
        return self.run

    # ── one group ──────────────────────────────────────────────────────────────────────────────────

    def _group(self, group: PlannedGroup) -> None:
        self.known = set()
        records = GroupOnItsWay(self, group, self.confirmed).carry_out()
        derived = derive(dataclasses.replace(self.run, records=records)).records
        self.run = dataclasses.replace(self.run, records=(*self.run.records, *derived))
        self.known = set()
        self._write()

    # ── one request (`sweep.group.Workers`) ────────────────────────────────────────────────────────

    @property
    def settings(self) -> Settings:
        """Of the run."""
        return self.run.settings

    def renew(self) -> None:
        """Have the next request carried out by a process that no backend was in."""
        if self.touched:
            self._end_worker()

    def sit(self, group: PlannedGroup, names: Sequence[str]) -> Sitting:
        """Have some of a group's backends measured.

        Raises:
            NothingToRun: no worker could be started.
        """
        part, found = dataclasses.replace(group, backends=tuple(names)), dict[str, Record]()
        worker = self._ready_worker()
        if isinstance(worker, Loss):
            return Sitting(part.backends, found, worker, alone=False)
        index = self._environment_index(worker)
        self.touched |= {*names}
        alone = len(self.touched) == 1

        def keep(record: Record) -> None:
            record = accepted(record, part)
            found[record.backend] = dataclasses.replace(record, environment=index)
            self._tell("record", group=group, record=record)

        def word(word: Word) -> None:
            backend = names[word.index] if 0 <= word.index < len(names) else None
            self._tell("word", text=word.phase, group=group, backend=backend)

        result = worker.measure(part, self.run.settings, self.files, on_record=keep, on_word=word)
        missing = [name for name in names if name not in found]
        if not isinstance(result, Loss):
            self.sampling_s += result
            if not missing:
                if any(is_stuck(note) for record in found.values() for note in record.notes):
                    self._end_worker()
                return Sitting(part.backends, found, None, alone)
            said = Word(0, names.index(missing[0]), "sample")
            result = Loss(Status.CRASHED, said, f"the worker said it was done and has no record of {missing[0]}")
        self._end_worker()
        return Sitting(part.backends, found, result, alone)

    def failure(self, group: PlannedGroup, name: str, loss: Loss) -> Record:
        """The record of a backend with which a worker was lost."""
        record = Record(
            workload=group.workload, case=group.case, case_id=group.case_id, group=group.group, backend=name,
            replicate=group.replicate, status=loss.status, reason=without_paths(loss.reason),
            environment=len(self.run.environments) - 1 if self.run.environments else None,
            repro=repro(group, self.run.settings, name, self.files),
        )
        self._tell("record", group=group, record=record)
        return record

    # ── workers ────────────────────────────────────────────────────────────────────────────────────

    def _ready_worker(self) -> Worker | Loss:
        if self.worker is None:
            self.worker = Worker(self.run.settings.device)
            self._tell("word", text="starting a worker")
            if loss := self.worker.start():
                self._end_worker()
                if not self.run.environments:
                    raise NothingToRun(f"worker: device={self.run.settings.device} cannot be measured; {loss.reason}")
                return dataclasses.replace(loss, word=Word(0, HARNESS, "start"))
        return self.worker

    def _environment_index(self, worker: Worker) -> int:
        environment = worker.environment
        assert environment is not None
        if environment not in self.run.environments:
            self.run = dataclasses.replace(self.run, environments=(*self.run.environments, environment))
        return self.run.environments.index(environment)

    def _end_worker(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker = None
            self.touched = set()

    # ── telling and writing ────────────────────────────────────────────────────────────────────────

    def _write(self) -> None:
        if self.writer:
            self.writer.write(self.run)

    def _tell(
        self, kind: str, *, text: str = "", group: PlannedGroup | None = None, backend: str | None = None,
        record: Record | None = None,
    ) -> None:
        if record is not None:
            self.known.add(record.backend)
        self.on_event(Event(kind, text, group.group if group else None, backend or (record and record.backend) or None,
                            len(self.run.records) + len(self.known), self.total, self.sampling_s, record,
                            self.run if kind in ("start", "group", "done") else None))

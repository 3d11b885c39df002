"""A run carried out: group after group in a worker, written after each, resumed where it stopped.

When a worker dies or hangs, the backend its blame page names gets the record.  Blame for what was
done alone (`blame.ALONE`) stands at once.  Blame from sampling may be another's, because the GPU
reports late: that backend is measured once alone, and if it passes there, every backend of the group
is measured by itself beside the baseline.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from attnbench.errors import NothingToRun
from attnbench.machine.clocks import locked_clocks
from attnbench.record import Environment, PlannedGroup, Record, Run, Settings, Status
from attnbench.store.derive import derive
from attnbench.store.runfile import Writer
from attnbench.worker.blame import HARNESS, Word
from attnbench.worker.outcome import repro
from attnbench.worker.parts import joined, moved, rounds_taken
from attnbench.worker.private import without_paths
from attnbench.worker.process import Loss, Worker

MOST_LOSSES = 3
"""Workers lost in one group with nobody to blame before the group is given up."""

APART = "measured apart: in a group with the others a worker was lost and nobody failed alone"


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
        self.worker: Worker | None = None
        self.total = sum(len(group.backends) for group in run.plan)
        self.sampling_s = 0.0
        self.done: dict[str, Record] = {}
        "final records of the group in flight"

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
        self.done = {}
        done, nobody = self.done, 0
        while pending := [name for name in group.backends if name not in done]:
            loss = self._measure(group, pending, done)
            if loss is None:
                break
            name = self._blamed(loss, pending)
            if name is None:
                nobody += 1
                # The harness has many timeouts for one step; it would take as long again.
                if nobody == MOST_LOSSES or loss.status is Status.TIMEOUT:
                    done |= {one: self._failure(group, one, loss) for one in pending if one not in done}
            if any(one not in done for one in pending if one != name):
                # A group is one comparison: who passed is measured again, beside those that are left.
                for one in [one for one, record in done.items() if record.status is Status.PASSED]:
                    del done[one]
            if name is None:
                continue
            if loss.word.alone or len(pending) == 1:
                # What is wrong with it may be known already, and only its closing have ended the worker.
                if name not in done or done[name].status is Status.PASSED:
                    done[name] = self._failure(group, name, loss)
            elif not self._fails_alone(group, name, done):
                self._apart(group, done)
        records = tuple(done[name] for name in group.backends)
        derived = derive(dataclasses.replace(self.run, records=records)).records
        self.run = dataclasses.replace(self.run, records=(*self.run.records, *derived))
        self.done = {}
        self._write()

    def _measure(self, group: PlannedGroup, names: Iterable[str], done: dict[str, Record]) -> Loss | None:
        """Have some of a group's backends measured; what is final lands in `done`."""
        part = dataclasses.replace(group, backends=tuple(names))
        worker = self._ready_worker()
        if isinstance(worker, Loss):
            return worker
        index = self._environment_index(worker)

        def keep(record: Record) -> None:
            done[record.backend] = dataclasses.replace(record, environment=index)
            self._tell("record", group=group, record=record)

        def word(word: Word) -> None:
            backend = part.backends[word.index] if 0 <= word.index < len(part.backends) else None
            self._tell("word", text=word.phase, group=group, backend=backend)

        result = worker.measure(part, self.run.settings, self.files, on_record=keep, on_word=word)
        if isinstance(result, Loss):
            self._end_worker()
            return result
        self.sampling_s += result
        return None

    def _fails_alone(self, group: PlannedGroup, name: str, done: dict[str, Record]) -> bool:
        """Measure a suspect by itself; whether it was the culprit, which then has its record."""
        trial: dict[str, Record] = {}
        again = self._measure(group, [name], trial)
        if again is not None and again.word.index != HARNESS:
            trial[name] = self._failure(group, name, again)
        if name not in trial or trial[name].status is Status.PASSED:
            return False
        done[name] = trial[name]
        return True

    def _apart(self, group: PlannedGroup, done: dict[str, Record]) -> None:
        """Each that is left by itself beside the baseline: someone does harm that shows elsewhere.

        Where the harm is the baseline's, the others are measured without it.
        """
        baseline = self.run.settings.baseline
        began, rounds = time.monotonic(), max(map(rounds_taken, done.values()), default=0)
        for name in sorted(group.backends, key=lambda one: one != baseline):
            if name in done:
                continue
            attempts = [[name]]
            if baseline is not None and baseline in done and done[baseline].status is Status.PASSED:
                attempts.insert(0, [baseline, name])
            started = time.monotonic()
            for names in attempts:
                self._end_worker()  # the harm may lie in the process
                found: dict[str, Record] = {}
                loss = self._measure(group, names, found)
                if loss is None:
                    break
                found = {name: self._failure(group, name, loss)}
            found = {one: moved(record, rounds=rounds, seconds=started - began) for one, record in found.items()}
            rounds = max(rounds, *map(rounds_taken, found.values()))
            done[name] = dataclasses.replace(found[name], notes=(*found[name].notes, APART))
            if baseline in found and baseline != name:
                done[baseline] = joined(done[baseline], found[baseline])
        self._end_worker()

    def _blamed(self, loss: Loss, names: Sequence[str]) -> str | None:
        """The backend a loss names."""
        return names[loss.word.index] if 0 <= loss.word.index < len(names) else None

    def _failure(self, group: PlannedGroup, name: str, loss: Loss) -> Record:
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

    # ── telling and writing ────────────────────────────────────────────────────────────────────────

    def _write(self) -> None:
        if self.writer:
            self.writer.write(self.run)

    def _tell(
        self, kind: str, *, text: str = "", group: PlannedGroup | None = None, backend: str | None = None,
        record: Record | None = None,
    ) -> None:
        self.on_event(Event(kind, text, group.group if group else None, backend or (record and record.backend) or None,
                            len(self.run.records) + len(self.done), self.total, self.sampling_s, record))

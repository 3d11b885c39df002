"""One group on its way to its records: measured together, and whoever fails there once more alone.

A process is shared: a thread that one backend left, a write past a tensor or a late error of the GPU shows
in whoever is at work then.  So a failure in a process that others were in only accuses.  The backend is
measured once more in a fresh process that no other backend touches:

    it fails there too      that is its record, and the rest of the group is measured on
    it passes there         another one did the harm: each backend that has no record yet is measured in a
                            fresh process beside the baseline, and alone where that fails

A worker that was ended by a signal from outside (the OOM killer, an operator) is nobody's fault the first
time: the same is measured again.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from attnbench.backends.registry import parse_selector
from attnbench.errors import WorkerError
from attnbench.record import PlannedGroup, Record, Run, Settings, Status, to_dict
from attnbench.store.runfile import dumps, loads
from attnbench.worker.parts import joined, moved, rounds_taken
from attnbench.worker.process import Loss, ended_from_outside

MOST_LOSSES = 3
"""Workers lost in one group with nobody to blame before the group is given up."""

CONVICTIONS = frozenset({Status.INCORRECT, Status.OOM, Status.TIMEOUT, Status.CRASHED, Status.FAILED})
"""Outcomes that need a process which no other backend touched."""

APART = "measured apart: in a process with others a backend failed that passes alone"
BY_ITSELF = "measured by itself: what it left changed cannot be put back"


@dataclass(frozen=True, slots=True)
class Sitting:
    """What one request to a worker gave."""

    names: tuple[str, ...]
    found: dict[str, Record]
    loss: Loss | None
    alone: bool
    "no other backend was ever asked for in this process"

    @property
    def blamed(self) -> str | None:
        """The backend that the loss of the worker names; None for none, and where the harness was at work."""
        index = -1 if self.loss is None else self.loss.word.index
        return self.names[index] if 0 <= index < len(self.names) else None


class Workers(Protocol):
    """What carries requests out: `sweep.run.Execution`."""

    @property
    def settings(self) -> Settings:
        """Of the run."""

    def renew(self) -> None:
        """Have the next request carried out by a process that no backend was in."""

    def sit(self, group: PlannedGroup, names: Sequence[str]) -> Sitting:
        """Have some backends of a group measured."""

    def failure(self, group: PlannedGroup, name: str, loss: Loss) -> Record:
        """The record of a backend with which a worker was lost."""


@dataclass(slots=True)
class Confirmed:
    """Exceptions that a backend has been seen to raise alone, so that a long run starts no process for each."""

    _seen: set[tuple[str, str]] = field(default_factory=set)

    def add(self, record: Record) -> None:
        """Remember how a backend failed alone."""
        if record.status is Status.FAILED:
            self._seen.add(_failure_key(record))

    def __contains__(self, record: Record) -> bool:
        return record.status is Status.FAILED and _failure_key(record) in self._seen


def _failure_key(record: Record) -> tuple[str, str]:
    """Backend and words, without the numbers that differ from case to case."""
    return parse_selector(record.backend)[0], re.sub(r"\d+", "#", record.reason or "")


class GroupOnItsWay:
    """Measures one group; used once."""

    def __init__(self, workers: Workers, group: PlannedGroup, confirmed: Confirmed) -> None:
        self.workers, self.group, self.confirmed = workers, group, confirmed
        self.done: dict[str, Record] = {}
        self.cleared: dict[str, Record] = {}
        "how backends ended beside others that pass alone"
        self.aside: list[str] = []
        "who left what cannot be put back: measured by themselves when the others are done"
        self.began = time.monotonic()

    def carry_out(self) -> tuple[Record, ...]:
        """The record of each backend, in the group's order.

        Raises:
            NothingToRun: no worker could be started.
        """
        nobody = 0
        while pending := [name for name in self.group.backends if name not in self.done and name not in self.aside]:
            sitting = self._attempt(pending)
            found, loss = sitting.found, sitting.loss
            if loss is not None and loss.stuck:
                if sitting.blamed is None:
                    self._apart()
                else:
                    self.aside.append(sitting.blamed)
                continue
            innocent = self._tried(sitting)
            if loss is not None and sitting.blamed is None:
                nobody += 1
                # The harness has many timeouts for one step; it would take as long again.
                if nobody == MOST_LOSSES or loss.status is Status.TIMEOUT:
                    found |= {one: self.workers.failure(self.group, one, loss) for one in pending if one not in found}
            self.done |= {name: record for name, record in found.items() if record.status is not Status.PASSED}
            if innocent:
                self._apart()
            elif all(name in found for name in pending):
                self.done |= found
            # Else who passed is measured again, beside those that are left: a group is one comparison.
        for name in self.aside:
            self._alone_in_the_end(name)
        return tuple(self.done[name] for name in self.group.backends)

    def _attempt(self, names: Sequence[str], *, fresh: bool = False) -> Sitting:
        """One sitting, or another where a signal from outside ended it; a loss is in the record of who is blamed."""
        if fresh:
            self.workers.renew()
        sitting = self.workers.sit(self.group, names)
        if sitting.loss is not None and sitting.loss.outside:
            sitting = self.workers.sit(self.group, names)
        loss, name = sitting.loss, sitting.blamed
        # What is wrong with it may be known already, and only its closing have ended the worker.
        if loss is not None and not loss.stuck and name is not None and not _failed(sitting.found.get(name)):
            sitting.found[name] = self.workers.failure(self.group, name, loss)
        return sitting

    # ── who fails alone too ────────────────────────────────────────────────────────────────────────

    def _tried(self, sitting: Sitting) -> bool:
        """Replace each failure by how that backend fails alone; whether one of them does not."""
        found = sitting.found
        failed = [record for record in found.values() if record.status in CONVICTIONS]
        # All of them alike is the doing of the case or the machine: one trial speaks for all.
        ways = {(record.status, record.reason) for record in failed}
        alike = len(ways) == 1 and len(failed) == len(sitting.names)
        for record in failed:
            if sitting.alone:
                self.confirmed.add(record)
            elif record not in self.confirmed:
                trial = self._trial(record.backend)
                if trial is None:
                    self.cleared[record.backend] = record
                else:
                    found[record.backend] = trial
            if alike:
                break
        for record in failed:
            if record.backend in self.cleared or (alike and self.cleared):
                del found[record.backend]
        return bool(self.cleared)

    def _trial(self, name: str) -> Record | None:
        """How a backend fails in a process that nobody else touched; None where it does not."""
        record = self._attempt([name], fresh=True).found.get(name)
        if record is None or record.status is Status.PASSED:
            return None
        self.confirmed.add(record)
        return record

    def _by_itself(self, name: str) -> dict[str, Record]:
        """A backend measured in a process that nobody else touches; its record, however that ends."""
        sitting = self._attempt([name], fresh=True)
        if sitting.loss is not None and not _failed(sitting.found.get(name)):
            sitting.found[name] = self.workers.failure(self.group, name, sitting.loss)
        return sitting.found

    def _alone_in_the_end(self, name: str) -> None:
        """Measure who leaves what cannot be put back; he shares no round with anybody."""
        rounds = max(map(rounds_taken, self.done.values()), default=0)
        record = moved(self._by_itself(name)[name], rounds=rounds, seconds=time.monotonic() - self.began)
        self.done[name] = dataclasses.replace(record, notes=(*record.notes, BY_ITSELF))
        self.workers.renew()

    # ── each apart ─────────────────────────────────────────────────────────────────────────────────

    def _apart(self) -> None:
        """Each that is left in a process of its own, beside the baseline."""
        baseline = self.workers.settings.baseline
        rounds = max(map(rounds_taken, self.done.values()), default=0)
        for name in sorted(self.group.backends, key=lambda one: one != baseline):
            if name in self.done or name in self.aside:
                continue
            started = time.monotonic()
            found, notes = self._beside_baseline(name)
            found = {one: moved(record, rounds=rounds, seconds=started - self.began) for one, record in found.items()}
            rounds = max(rounds, *map(rounds_taken, found.values()))
            own = found[name]
            self.done[name] = dataclasses.replace(own, notes=(*own.notes, APART, *notes))
            if baseline in found and baseline != name:
                self.done[baseline] = joined(self.done[baseline], found[baseline])
        self.workers.renew()  # the harm may lie in the process

    def _beside_baseline(self, name: str) -> tuple[dict[str, Record], list[str]]:
        """Records of a backend, and of the baseline if that went beside it; with what is to be noted of it."""
        baseline = self.workers.settings.baseline
        notes = [_cleared(self.cleared[name])] if name in self.cleared else []
        if baseline is not None and baseline in self.done and self.done[baseline].status is Status.PASSED:
            sitting = self._attempt([baseline, name], fresh=True)
            if sitting.loss is None and not any(map(_failed, sitting.found.values())):
                return sitting.found, notes
            notes.append(_beside(sitting, baseline))
        return self._by_itself(name), notes


def _failed(record: Record | None) -> bool:
    return record is not None and record.status is not Status.PASSED


def _cleared(record: Record) -> str:
    return f"passes alone; in a process with others: {record.status.value}: {record.reason}"


def _beside(sitting: Sitting, baseline: str) -> str:
    """What happened to two that were in one process."""
    said = [f"{name} {record.status.value}: {record.reason}" for name, record in sitting.found.items()
            if _failed(record)]
    if sitting.loss is not None and sitting.blamed is None:
        said.append(f"{sitting.loss.status.value}: {sitting.loss.reason}")
    return f"measured without {baseline}: in one process with it, {'; '.join(said)}"


def accepted(record: Record, group: PlannedGroup) -> Record:
    """A record that came from a worker, once it is known to be of this group and fit for a run file.

    Raises:
        WorkerError: it is not: somebody else than the harness wrote it.
    """
    def of(one: Record | PlannedGroup) -> tuple[Any, ...]:
        return one.workload, to_dict(one.case), one.case_id, one.group, one.replicate

    if of(record) != of(group) or record.backend not in group.backends:
        raise WorkerError(f"worker: it gave a record of {record.group} {record.backend}, which it was not asked for")
    plain = dataclasses.replace(record, environment=None, speedup=None)
    try:
        loads(dumps(Run(id="0000", suite="", command="", started="", records=(plain,))))
    except Exception as error:  # the edge: whatever is in it, the run goes on
        raise WorkerError(f"worker: its record of {record.backend} cannot be kept ({error})") from None
    return plain


def without_interrupted(run: Run) -> Run:
    """`run` without the records of workers that a signal from outside ended: they are to be measured again."""
    return dataclasses.replace(run, records=tuple(one for one in run.records if not ended_from_outside(one)))

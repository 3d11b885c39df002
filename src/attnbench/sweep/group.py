"""Decides which backend of a group to blame: all are measured together, and one that fails there once more alone.

Backends share a process.  A thread that one of them left running, a write past a tensor or a late GPU error shows up
in whichever backend is running then.  So a failure in a process that other backends have used is only a suspicion.  The
backend is measured again in a new process that no other backend uses:

    it fails there too      that is its record, and the rest of the group is measured on
    it passes there         another backend caused the failure: each backend that has no record yet is measured in a
                            new process beside the baseline, and alone if that fails

If a signal from outside (the OOM killer, an operator) ended a worker, no backend is blamed the first time: the same
request is repeated.  `sweep.run` decides which groups are measured, and when; `sweep.device_worker` carries
requests out.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from attnbench.backends.registry import parse_selector
from attnbench.record import PlannedGroup, Record, Settings, Status
from attnbench.sweep.device_worker import Attempt
from attnbench.worker.parts import joined, moved, rounds_taken
from attnbench.worker.process import Loss

MOST_LOSSES = 3
"""Workers lost in one group without a backend to blame before the group is given up."""

CONVICTIONS = frozenset({Status.INCORRECT, Status.OOM, Status.TIMEOUT, Status.CRASHED, Status.FAILED})
"""Statuses that have to be confirmed in a process which no other backend has used."""

APART = "measured apart: in a process with others a backend failed that passes alone"
BY_ITSELF = "measured by itself: what it left changed cannot be restored"


class Requests(Protocol):
    """Carries requests out: `sweep.device_worker.DeviceWorker`."""

    def renew(self) -> None:
        """Have the next request carried out by a new process, which no backend has used."""

    def attempt(self, group: PlannedGroup, names: Sequence[str], settings: Settings) -> Attempt:
        """Measure some backends of a group."""

    def failure(self, group: PlannedGroup, name: str, settings: Settings, loss: Loss) -> Record:
        """Return the record of a backend blamed for the loss of a worker."""


class _Interrupted(Exception):
    """The run is to end."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.reason)
        self.loss = loss


@dataclass(slots=True)
class ConfirmedFailures:
    """Exceptions that a backend has raised alone, so that a long run does not start a process to confirm each."""

    _seen: set[tuple[str, str]] = field(default_factory=set)

    def add(self, record: Record) -> None:
        """Remember a failure of a backend that was alone."""
        if record.status is Status.FAILED:
            self._seen.add(_failure_key(record))

    def __contains__(self, record: Record) -> bool:
        return record.status is Status.FAILED and _failure_key(record) in self._seen


def _failure_key(record: Record) -> tuple[str, str]:
    """Return backend and message, without the numbers that differ from case to case."""
    return parse_selector(record.backend)[0], re.sub(r"\d+", "#", record.reason or "")


class GroupMeasurement:
    """Measures one group; used once."""

    def __init__(
        self, requests: Requests, group: PlannedGroup, settings: Settings, confirmed: ConfirmedFailures
    ) -> None:
        self.requests, self.group, self.settings, self.known_failures = requests, group, settings, confirmed
        self.done: dict[str, Record] = {}
        self.cleared: dict[str, Record] = {}
        "failed records of backends that passed alone"
        self.separate: list[str] = []
        "backends that left a setting changed that cannot be restored: measured by themselves after the others"
        self.together: dict[str, Record] = {}
        "records without suspicion of the last request for all backends that were left"
        self.began = time.monotonic()

    def records(self) -> tuple[Record, ...]:
        """Return the record of each backend, in the group's order.

        If the run is to end, backends without enough samples are skipped, with the reason.

        Raises:
            NothingToRun: no worker could be started.
        """
        try:
            self._measure()
        except _Interrupted as end:
            self.done = {**self.together, **self.done}
            for name in self.group.backends:
                if name not in self.done:
                    self.done[name] = self._lost(name, end.loss)
        return tuple(self.done[name] for name in self.group.backends)

    def _measure(self) -> None:
        nobody = 0
        while pending := [name for name in self.group.backends if name not in self.done and name not in self.separate]:
            attempt = self._request(pending)
            found, loss = attempt.found, attempt.loss
            if loss is not None and loss.stuck:
                if attempt.blamed is None:
                    self._apart()
                else:
                    self.separate.append(attempt.blamed)
                continue
            passes_alone = self._retried_alone(attempt)
            if loss is not None and attempt.blamed is None:
                nobody += 1
                # The harness has many timeouts for one step, and a repetition would take as long again.
                if nobody == MOST_LOSSES or loss.status is Status.TIMEOUT:
                    if loss.status is not Status.TIMEOUT and self._one_passes(pending):
                        self._apart()
                        continue
                    found |= {one: self._lost(one, loss) for one in pending if one not in found}
            self.done |= {name: record for name, record in found.items() if record.status is not Status.PASSED}
            if passes_alone:
                self._apart()
            elif all(name in found for name in pending):
                self.done |= found
            # Without this, those that passed are measured again with the rest: a group is one comparison.
        for name in self.separate:
            self._in_own_process(name)

    def _request(self, names: Sequence[str], *, fresh: bool = False) -> Attempt:
        """Make one request, repeated if a signal from outside ended it; a loss becomes the blamed backend's record."""
        if fresh:
            self.requests.renew()
        attempt = self.requests.attempt(self.group, names, self.settings)
        if attempt.loss is not None and attempt.loss.outside:
            attempt = self.requests.attempt(self.group, names, self.settings)
        if not fresh:
            kept = (Status.PASSED, Status.SKIPPED)
            self.together = {name: record for name, record in attempt.found.items() if record.status in kept}
        if attempt.loss is not None and attempt.loss.interrupted:
            raise _Interrupted(attempt.loss)
        loss, name = attempt.loss, attempt.blamed
        # A backend that has failed already may have ended the worker only when it was closed.
        if loss is not None and not loss.stuck and name is not None and not _failed(attempt.found.get(name)):
            attempt.found[name] = self._lost(name, loss)
        return attempt

    def _lost(self, name: str, loss: Loss) -> Record:
        return self.requests.failure(self.group, name, self.settings, loss)

    # ── which backends fail alone too ──────────────────────────────────────────────────────────────

    def _retried_alone(self, attempt: Attempt) -> bool:
        """Replace each failure by the backend's failure alone; return whether any of them passes alone."""
        found = attempt.found
        failed = [record for record in found.values() if record.status in CONVICTIONS]
        # If all fail alike, the cause is the case or the machine, and one trial is enough for all.
        ways = {(record.status, record.reason) for record in failed}
        alike = len(ways) == 1 and len(failed) == len(attempt.names)
        for record in failed:
            if attempt.alone:
                self.known_failures.add(record)
            elif record not in self.known_failures:
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
        """Return a backend's failure in a process that no other backend has used; None if it passes."""
        record = self._request([name], fresh=True).found.get(name)
        if record is None or record.status is Status.PASSED:
            return None
        self.known_failures.add(record)
        return record

    def _one_passes(self, names: Sequence[str]) -> bool:
        """Whether one of two passes alone, where nobody knows who ended the process of several: the harness did not."""
        tried = names[:2] if len(names) > 1 else ()
        trials = (self._request([name], fresh=True).found.get(name) for name in tried)
        return any(record is not None and not _failed(record) for record in trials)

    def _by_itself(self, name: str) -> dict[str, Record]:
        """Measure a backend in a process that no other backend uses; return its record, passed or not."""
        attempt = self._request([name], fresh=True)
        if attempt.loss is not None and not _failed(attempt.found.get(name)):
            attempt.found[name] = self._lost(name, attempt.loss)
        return attempt.found

    def _in_own_process(self, name: str) -> None:
        """Measure a backend that leaves irreversible changes in its own process; it shares no round with others."""
        rounds = max(map(rounds_taken, self.done.values()), default=0)
        record = moved(self._by_itself(name)[name], rounds=rounds, seconds=time.monotonic() - self.began)
        self.done[name] = dataclasses.replace(record, notes=(*record.notes, BY_ITSELF))
        self.requests.renew()

    # ── each backend apart ─────────────────────────────────────────────────────────────────────────

    def _apart(self) -> None:
        """Measure each backend that has no record yet in its own process, beside the baseline."""
        baseline = self.settings.baseline
        rounds = max(map(rounds_taken, self.done.values()), default=0)
        self.together = {}  # their process was damaged by one of them
        for name in sorted(self.group.backends, key=lambda one: one != baseline):
            if name in self.done or name in self.separate:
                continue
            started = time.monotonic()
            found, notes = self._beside_baseline(name)
            found = {one: moved(record, rounds=rounds, seconds=started - self.began) for one, record in found.items()}
            rounds = max(rounds, *map(rounds_taken, found.values()))
            own = found[name]
            self.done[name] = dataclasses.replace(own, notes=(*own.notes, APART, *notes))
            if baseline in found and baseline != name:
                self.done[baseline] = joined(self.done[baseline], found[baseline])
        self.requests.renew()  # the process may be damaged

    def _beside_baseline(self, name: str) -> tuple[dict[str, Record], list[str]]:
        """Return records of a backend, and of the baseline if measured beside it; with notes on the backend."""
        baseline = self.settings.baseline
        notes = [_cleared(self.cleared[name])] if name in self.cleared else []
        if baseline is not None and baseline in self.done and self.done[baseline].status is Status.PASSED:
            attempt = self._request([baseline, name], fresh=True)
            if attempt.loss is None and not any(map(_failed, attempt.found.values())):
                return attempt.found, notes
            notes.append(_beside(attempt, baseline))
        return self._by_itself(name), notes


def _failed(record: Record | None) -> bool:
    return record is not None and record.status is not Status.PASSED


def _cleared(record: Record) -> str:
    return f"passes alone; in a process with others: {record.status.value}: {record.reason}"


def _beside(attempt: Attempt, baseline: str) -> str:
    """Describe what happened to two backends in one process."""
    said = [
        f"{name} {record.status.value}: {record.reason}" for name, record in attempt.found.items() if _failed(record)
    ]
    if attempt.loss is not None and attempt.blamed is None:
        said.append(f"{attempt.loss.status.value}: {attempt.loss.reason}")
    return f"measured without {baseline}: in one process with it, {'; '.join(said)}"

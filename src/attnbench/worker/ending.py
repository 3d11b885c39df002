"""How the backends of a group end: their records, their sessions closed, and nothing left for the others."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from contextlib import suppress

from attnbench.backends.base import Machine
from attnbench.check.examine import Outcome
from attnbench.check.globals import is_stuck
from attnbench.check.reference import References
from attnbench.machine.device import Device
from attnbench.measure.stage import synchronize
from attnbench.record import PlannedGroup, Record, Settings, Status
from attnbench.worker.activity import ActivityPage
from attnbench.worker.device import Stuck, raise_if_lost, release
from attnbench.worker.entry import Entry, globals_kept
from attnbench.worker.outcome import RecordBuilder, reason_of
from attnbench.worker.protocol import TURN


class GroupEnds:
    """What `group.GroupRun` does when a backend has ended, one way or another."""

    group: PlannedGroup
    settings: Settings
    machine: Machine
    device: Device
    page: ActivityPage
    references: References
    on_record: Callable[[Record], None]

    def _fit_for_others(self, index: int, phase: str, *builders: RecordBuilder) -> None:
        """End the worker where a backend changed what cannot be put back, unless nobody else is to be measured.

        Raises:
            Stuck: it did.
        """
        notes = [note for builder in builders for note in builder.notes if is_stuck(note)]
        if notes and len(self.group.backends) > 1:
            raise Stuck(index, phase, notes[0])

    def _inputs_kept(self, words: str) -> Outcome:
        """Whether the inputs are what they were; they are put back where not."""
        names = self.references.first.changed() if self.settings.check else []
        return Outcome(not names, f"changed inputs: {', '.join(names)} ({words})" if names else None)

    def _turn(self, index: int, phase: str) -> None:
        """Say whose turn it is, in the log too: what stands there before is not from this turn."""
        self.page.announce(index, phase)
        with suppress(OSError, ValueError):  # a backend may have closed it
            print(f"{TURN} {phase}", file=sys.stderr, flush=True)  # noqa: T201

    def _end(self, entry: Entry, status: Status, reason: str | None, oom: str = "although alone") -> None:
        """Write the record of a backend that did not pass."""
        entry.ended = True
        if entry.repeated:
            return
        builder = entry.builder
        if status is Status.OOM:
            self._keep(entry, builder.oom(self.machine.memory_bytes, oom))
        else:
            self._keep(entry, builder.failed(status, reason or status.value))

    def _keep(self, entry: Entry, record: Record) -> None:
        entry.record = record
        self.on_record(record)

    def _close(self, entry: Entry) -> None:
        """Close a session that was measured; what its closing raises is held against it."""
        entry.launch = None
        self._turn(entry.index, "closing")
        reason: str | None
        known = len(entry.builder.notes)
        try:
            with globals_kept([entry.builder], "when it was closed: "):
                entry.closing.close()
                synchronize(self.device)
        except Exception as error:  # the edge: see _open
            reason = reason_of(error, "closing")
            raise_if_lost(self.device, entry.index, "closing", reason)
            status = Status.FAILED
        else:
            status, reason = Status.INCORRECT, self._inputs_kept("when it was closed").reason
        if reason is not None and not entry.ended:
            self._end(entry, status, reason)
        elif entry.record is not None and (notes := entry.builder.notes[known:]):
            self._keep(entry, dataclasses.replace(entry.record, notes=(*entry.record.notes, *notes)))
        self._fit_for_others(entry.index, "closing", entry.builder)

    def _abandon(self, entry: Entry) -> None:
        """Close a session that failed, whose reason is known: what its closing raises is a note."""
        entry.launch = None
        self._turn(entry.index, "closing")
        try:
            with globals_kept([entry.builder], "when it was closed: "):
                entry.closing.close()
        except Exception as error:  # the edge: see _open
            entry.builder.note(f"closing it raised {type(error).__name__}")
        release(self.device)

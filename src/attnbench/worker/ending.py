"""How the backends of a group end: write their records, close their sessions, restore what they changed."""

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
    """The part of `group.GroupRun` that ends a backend, successfully or not."""

    group: PlannedGroup
    settings: Settings
    machine: Machine
    device: Device
    page: ActivityPage
    references: References
    on_record: Callable[[Record], None]

    def _fit_for_others(self, index: int, phase: str, *builders: RecordBuilder) -> None:
        """End the worker if a backend changed a setting that cannot be restored and others are still to be measured.

        Raises:
            Stuck: it did.
        """
        notes = [note for builder in builders for note in builder.notes if is_stuck(note)]
        if notes and len(self.group.backends) > 1:
            raise Stuck(index, phase, notes[0])

    def _inputs_kept(self, words: str) -> Outcome:
        """Check that the inputs are unchanged; restore changed ones."""
        names = self.references.first.changed() if self.settings.check else []
        return Outcome(not names, f"changed inputs: {', '.join(names)} ({words})" if names else None)

    def _turn(self, index: int, phase: str) -> None:
        """Announce the backend and phase, on the activity page and in the log, so that later lines belong to it."""
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
        """Close a session that was measured; an exception in closing makes its record a failure."""
        entry.launch = None
        self._turn(entry.index, "closing")
        reason: str | None
        known = len(entry.builder.notes)
        try:
            with globals_kept([entry.builder], "when it was closed: "):
                entry.closing.close()
                synchronize(self.device)
        except Exception as error:  # catches everything: see _open
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
        """Close a session that failed for a known reason; an exception in closing becomes a note."""
        entry.launch = None
        self._turn(entry.index, "closing")
        try:
            with globals_kept([entry.builder], "when it was closed: "):
                entry.closing.close()
        except Exception as error:  # catches everything: see _open
            entry.builder.note(f"closing it raised {type(error).__name__}")
        release(self.device)

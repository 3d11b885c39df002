"""The worker process of one device: started when a request needs it, replaced when it is lost or no longer clean.

`sweep.group` decides what to request and which backend to blame; this module carries out requests and checks results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from attnbench.check.globals import is_stuck
from attnbench.errors import NothingToRun, WorkerError
from attnbench.machine.device import Device
from attnbench.record import Environment, PlannedGroup, Record, Run, Settings, Status, to_dict
from attnbench.store.runfile import dumps, loads
from attnbench.worker.activity import HARNESS, Activity
from attnbench.worker.outcome import repro
from attnbench.worker.process import Loss, Worker, interruption

START, SAMPLING = Activity(0, HARNESS, "start"), Activity(0, HARNESS, "sampling")


@dataclass(frozen=True, slots=True)
class Attempt:
    """Result of one request to a worker."""

    names: tuple[str, ...]
    "the backends that were requested"
    found: dict[str, Record]
    loss: Loss | None
    "how the worker was lost; None if it is still running"
    alone: bool
    "no other backend was ever requested in this process"

    @property
    def blamed(self) -> str | None:
        """The backend that was running when the worker was lost; None if there is no loss, or it was the harness."""
        index = -1 if self.loss is None else self.loss.activity.index
        return self.names[index] if 0 <= index < len(self.names) else None


class Stopped(Exception):
    """The measurement was ended by another thread (`DeviceWorker.stop`)."""


class Listener(Protocol):
    """Receives a worker's activity and records: `sweep.executor.DeviceExecutor`."""

    def on_activity(self, text: str, group: PlannedGroup | None = None, backend: str | None = None) -> None:
        """Receive what a worker is doing."""

    def on_record(self, group: PlannedGroup, record: Record) -> None:
        """Receive a record of a request; a later one of the same backend may replace it."""


class DeviceWorker:
    """Carries out requests on one device, one at a time.

    Args:
        device: what is measured on.
        files: paths of --backends files.
        listener: receives records and activity.
        measured_before: the run already had a worker on this device, so a failed start is a loss like any other.
    """

    def __init__(
        self, device: Device, files: Sequence[str], listener: Listener, *, measured_before: bool = False
    ) -> None:
        self.device, self.files, self.listener, self.measured_before = device, files, listener, measured_before
        self.sampling_s = 0.0
        "wall time spent sampling so far"
        self.environments: list[Environment] = []
        "of all processes so far, without duplicates; `Record.environment` is an index of it"
        self._environment: int | None = None
        "of the process started last"
        self._process: Worker | None = None
        self._stopped = False
        self._ending: tuple[str, bool] | None = None
        "name of the signal that ends the run, and whether to end at once"
        self._asked: set[str] = set()
        "backends that were requested in this process"

    def environment(self) -> Environment:
        """Start the process if there is none, and return its environment.

        Raises:
            NothingToRun: it could not be started.
        """
        process = self._ready()
        if isinstance(process, Loss):
            raise self._not_started(process)
        assert process.environment is not None  # a ready process has sent its environment
        return process.environment

    def begin(self) -> None:
        """Start the process if there is none; if it fails to start, the next request reports the loss.

        Raises:
            NothingToRun: no worker of the run could be started so far.
            Stopped: `stop` was called.
        """
        self._ready()

    def renew(self) -> None:
        """Have the next request carried out by a new process, which no backend has used."""
        if self._asked:
            self.close()

    def close(self) -> None:
        """End the process; a later request starts another one."""
        if self._process is not None:
            self._process.close()
            self._process = None
            self._asked = set()

    def stop(self) -> None:
        """From another thread: end the process for good; a waiting request raises `Stopped`."""
        self._stopped = True
        if (process := self._process) is not None:
            process.terminate()

    def interrupt(self, name: str, *, at_once: bool) -> None:
        """From the handler of signal `name` or another thread: end with the samples that suffice for a record."""
        self._ending = name, at_once
        if (process := self._process) is not None:
            process.interrupt(name, at_once=at_once)

    def attempt(self, group: PlannedGroup, names: Sequence[str], settings: Settings) -> Attempt:
        """Measure some backends of a group.

        Raises:
            NothingToRun: no worker of the run could be started so far.
            Stopped: `stop` was called.
        """
        part, found = dataclasses.replace(group, backends=tuple(names)), dict[str, Record]()
        process = self._ready() if self._ending is None else interruption(self._ending[0], START)
        if isinstance(process, Loss):
            return Attempt(part.backends, found, process, alone=False)
        index = self._environment
        self._asked |= {*names}
        alone = len(self._asked) == 1

        def keep(record: Record) -> None:
            record = accepted(record, part)
            found[record.backend] = dataclasses.replace(record, environment=index)
            self.listener.on_record(group, found[record.backend])

        def hear(activity: Activity) -> None:
            backend = names[activity.index] if 0 <= activity.index < len(names) else None
            self.listener.on_activity(activity.phase, group, backend)

        result = process.measure(part, settings, self.files, on_record=keep, on_activity=hear)
        if self._stopped:
            raise Stopped
        missing = [name for name in names if name not in found]
        if not isinstance(result, Loss):
            self.sampling_s += result
            if not missing:
                if any(is_stuck(note) for record in found.values() for note in record.notes):
                    self.close()
                return Attempt(part.backends, found, None, alone)
            if self._ending is not None:
                return Attempt(part.backends, found, interruption(self._ending[0], SAMPLING), alone)
            last = Activity(0, names.index(missing[0]), "sample")
            result = Loss(Status.CRASHED, last, f"the worker said it was done and has no record of {missing[0]}")
        self.close()
        return Attempt(part.backends, found, result, alone)

    def failure(self, group: PlannedGroup, name: str, settings: Settings, loss: Loss) -> Record:
        """Return the record of a backend blamed for the loss of a worker."""
        record = Record(
            workload=group.workload,
            case=group.case,
            case_id=group.case_id,
            group=group.group,
            backend=name,
            input=settings.input,
            replicate=group.replicate,
            status=loss.status,
            reason=loss.reason,
            environment=self._environment,
            repro=repro(group, settings, name, self.files),
        )
        self.listener.on_record(group, record)
        return record

    def _ready(self) -> Worker | Loss:
        if self._process is not None:
            return self._process
        process, loss = self._started()
        if loss is not None and loss.outside:  # no backend is blamed the first time, as in a measurement
            process, loss = self._started()
        if loss is not None:
            self.close()
            if loss.interrupted:
                return loss
            if not (self.environments or self.measured_before):
                raise self._not_started(loss)
            return dataclasses.replace(loss, activity=START)
        assert process.environment is not None  # a ready process has sent its environment
        if process.environment not in self.environments:
            self.environments.append(process.environment)
        self._environment = self.environments.index(process.environment)
        return process

    def _started(self) -> tuple[Worker, Loss | None]:
        """Start a process; return it, and how it was lost if it never became ready."""
        self.close()
        self._process = process = Worker(self.device)
        if self._ending is not None:  # the signal came while the process was created
            process.interrupt(self._ending[0], at_once=True)
        self.listener.on_activity("starting a worker")
        loss = None if self._stopped else process.start() or _misfit(process)
        if self._stopped:
            raise Stopped
        return process, loss

    def _not_started(self, loss: Loss) -> NothingToRun:
        return NothingToRun(f"worker: device={self.device} cannot be measured; {loss.reason}")


def accepted(record: Record, group: PlannedGroup) -> Record:
    """Return a worker's record, after checking that it belongs to this group and fits into a run file.

    Raises:
        WorkerError: it does not: something other than the harness wrote it.
    """
    check_requested(record, group)
    plain = dataclasses.replace(record, environment=None, speedup=None)
    check_kept(f"record of {record.backend}", records=(plain,))
    return plain


def check_requested(record: Record, group: PlannedGroup) -> None:
    """Check that a record belongs to a group.

    Raises:
        WorkerError: it does not.
    """

    def of(one: Record | PlannedGroup) -> tuple[Any, ...]:
        return one.workload, to_dict(one.case), one.case_id, one.group, one.replicate

    if of(record) != of(group) or record.backend not in group.backends:
        raise WorkerError(f"worker: it gave a record of {record.group} {record.backend}, which it was not asked for")


def check_kept(what: str, *, statistics: bool = True, **parts: Any) -> None:
    """Check that `parts` of a run, which came from a worker, can be read back from a run file.

    Args:
        what: name of the parts.
        statistics: check too that those of the samples can be computed.
        parts: arguments of `Run`.

    Raises:
        WorkerError: they cannot; the message names `what`.
    """
    try:
        loads(dumps(Run(id="0000", suite="", command="", started="", **parts)), statistics=statistics)
    except Exception as error:  # catches everything: the run continues whatever they contain
        raise WorkerError(f"worker: its {what} cannot be kept ({error})") from None


def _misfit(process: Worker) -> Loss | None:
    """Return the loss of a worker whose environment no run file can hold; None if it fits."""
    try:
        check_kept("environment", environments=(process.environment,))
    except WorkerError as error:
        return Loss(Status.CRASHED, Activity(0, HARNESS, "start"), str(error))
    return None

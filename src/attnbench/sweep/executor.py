"""An executor: measures a group from its first request to its last record, on one device with its worker.

It is the one interface of a run's schedule (`sweep.run`, `sweep.schedule`): a local GPU, one of several local GPUs, or
one on another machine take the same groups and return the same `Measured`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from attnbench.errors import NothingToRun
from attnbench.machine.device import Device
from attnbench.machine.gpu_lock import GpuLock
from attnbench.record import Environment, PlannedGroup, Record, Settings
from attnbench.sweep.ahead import CompiledAhead
from attnbench.sweep.device_worker import DeviceWorker
from attnbench.sweep.group import ConfirmedFailures, GroupMeasurement


class ExecutorLost(NothingToRun):
    """An executor cannot measure any more: its machine is gone, or its worker never started.

    Args:
        reason: the message.
        measuring: a group was being measured, and may be the cause.
    """

    def __init__(self, reason: str, *, measuring: bool) -> None:
        super().__init__(reason)
        self.measuring = measuring


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of an executor with a group."""

    text: str = ""
    "current activity"
    group: PlannedGroup | None = None
    backend: str | None = None
    record: Record | None = None
    "result of a request; a later one of the same backend may replace it"


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of measuring one group."""

    records: tuple[Record, ...]
    "of every backend of the group; their `environment` is an index of `environments`"
    environments: tuple[Environment, ...]
    sampling_s: float
    "wall time spent sampling"


class Executor(Protocol):
    """Measures groups, one at a time."""

    name: str
    "for display: cuda:1, with several machines also the machine"

    def order(self) -> str:
        """Key by which executors are opened in order, the same for one GPU in every process."""

    def open(self, on_progress: OnProgress) -> None:
        """Reserve the device for this run.

        Raises:
            ExecutorLost: the device does not exist.
            Unavailable: another run has it.
        """

    def measure(self, group: PlannedGroup, settings: Settings, on_progress: OnProgress) -> Measured:
        """Measure a group; the executor's own device replaces that of `settings`.

        Raises:
            ExecutorLost: it cannot measure any more; it has no results for the group.
            Stopped: `stop` was called meanwhile.
        """

    def interrupt(self, name: str, *, at_once: bool) -> bool:
        """From the handler of signal `name` or another thread: end with enough samples for records, or at once.

        Returns:
            Whether a group is being measured: `measure` then returns soon, or raises `Stopped` if it has no results.
        """

    def stop(self) -> None:
        """From another thread: end the current measurement."""

    def close(self) -> None:
        """End its processes, and release the device."""


class DeviceExecutor:
    """An executor for a device of this machine.

    Args:
        device: what is measured on.
        files: paths of --backends files.
        measured_before: a worker of this run has been on this device.
        wait: for another run to release the GPU; False refuses.
        beside: further devices that its groups are spread over (`Workload.devices`); they are reserved too.
    """

    def __init__(
        self,
        device: Device,
        files: tuple[str, ...] = (),
        *,
        measured_before: bool = False,
        wait: bool = True,
        beside: Sequence[Device] = (),
    ) -> None:
        self.name, self.device, self.devices = str(device), device, (device, *beside)
        self.worker = DeviceWorker(device, files, self, measured_before=measured_before)
        self._locks = sorted((GpuLock(one, wait=wait) for one in self.devices), key=GpuLock.order)
        self._known_failures = ConfirmedFailures()
        self._replicate = 0
        self._measuring = False
        self._on_progress: OnProgress = lambda progress: None
        self.ahead: CompiledAhead | None = None
        "for the run's plan, while it is carried out"

    def order(self) -> str:
        """Return the UUID of its first GPU."""
        return self._locks[0].order()

    def open(self, on_progress: OnProgress) -> None:
        """Take the locks of all its GPUs or of none, in an order that is the same in all processes."""
        try:
            for lock in self._locks:
                lock.acquire(lambda text: on_progress(Progress(text)))
        except BaseException:
            self._release()
            raise

    def measure(self, group: PlannedGroup, settings: Settings, on_progress: OnProgress) -> Measured:
        """Measure a group on this device."""
        self._on_progress = on_progress
        if group.replicate != self._replicate:
            self.worker.close()  # each replicate is measured in new processes
            self._replicate = group.replicate
        before, own = self.worker.sampling_s, dataclasses.replace(settings, device=str(self.device))
        self._measuring = True
        try:
            if self.ahead is not None:
                self.worker.begin()  # starts while kernels are compiled
                self.ahead.wait_for(group, lambda text: on_progress(Progress(text, group)))
            records = GroupMeasurement(self.worker, group, own, self._known_failures).records()
        except NothingToRun as error:
            raise ExecutorLost(str(error), measuring=False) from None
        finally:
            self._measuring = False
        return Measured(records, tuple(self.worker.environments), self.worker.sampling_s - before)

    def interrupt(self, name: str, *, at_once: bool) -> bool:
        """End the current measurement in order, and the compilation it waits for."""
        self.worker.interrupt(name, at_once=at_once)
        if self.ahead is not None:
            self.ahead.give_up()
        return self._measuring

    def stop(self) -> None:
        """End the current measurement, and the compilation it waits for."""
        if self.ahead is not None:
            self.ahead.give_up()
        self.worker.stop()

    def close(self) -> None:
        """End the worker, and release the GPU."""
        self.worker.close()
        self._release()

    def _release(self) -> None:
        for lock in self._locks:
            lock.release()

    # ── calls of the worker (`sweep.device_worker.Listener`) ───────────────────────────────────────

    def on_activity(self, text: str, group: PlannedGroup | None = None, backend: str | None = None) -> None:
        """Pass on the worker's activity."""
        self._on_progress(Progress(text, group, backend))

    def on_record(self, group: PlannedGroup, record: Record) -> None:
        """Pass on a record of the current group."""
        self._on_progress(Progress(group=group, backend=record.backend, record=record))

"""An executor: where a group is measured from its first request to its last record, one device with its worker.

It is the one seam of a run's schedule (`sweep.run`, `sweep.schedule`): a GPU here, one of several here, or one on
another machine take the same groups and hand back the same `Measured`.
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
    """An executor measures no more: its machine is gone, or its worker never started.

    Args:
        reason: in words.
        measuring: a group was at work, and may be what did it.
    """

    def __init__(self, reason: str, *, measuring: bool) -> None:
        super().__init__(reason)
        self.measuring = measuring


@dataclass(frozen=True, slots=True)
class Progress:
    """What an executor says of a group while it measures it."""

    text: str = ""
    "what is being done"
    group: PlannedGroup | None = None
    backend: str | None = None
    record: Record | None = None
    "one that a request gave; a later one of the same backend may replace it"


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """What measuring one group gave."""

    records: tuple[Record, ...]
    "of every backend of the group; their `environment` counts in `environments`"
    environments: tuple[Environment, ...]
    sampling_s: float
    "wall time spent taking samples"


class Executor(Protocol):
    """Measures groups, one at a time."""

    name: str
    "cuda:1, or also the machine: for the eye"

    def order(self) -> str:
        """What executors are opened in the order of, the same for one GPU in every process."""

    def open(self, on_progress: OnProgress) -> None:
        """Make it ours; other runs are kept off from here on.

        Raises:
            ExecutorLost: it is not there.
            Unavailable: another run has it.
        """

    def measure(self, group: PlannedGroup, settings: Settings, on_progress: OnProgress) -> Measured:
        """Measure a group; the executor's own device takes the place of that of `settings`.

        Raises:
            ExecutorLost: it can measure no more; nothing of the group is known.
            Stopped: `stop` was called meanwhile.
        """

    def interrupt(self, name: str, *, at_once: bool) -> bool:
        """From a handler of the signal `name`, or another thread: end with what is enough for records, or at once.

        Returns:
            Whether a group is in hand: `measure` returns soon, or raises `Stopped` where nothing of it is to be had.
        """

    def stop(self) -> None:
        """From another thread: end what is being measured."""

    def close(self) -> None:
        """End its processes, and let others have it."""


class DeviceExecutor:
    """A device of this machine.

    Args:
        device: what is measured on.
        files: paths of --backends files.
        measured_before: a worker of this run has been on this device.
        wait: for another run to let go of the GPU; False refuses.
        beside: further devices that its groups are spread over (`Workload.devices`): held too.
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
        "of the run's plan, while it is carried out"

    def order(self) -> str:
        """Its first GPU's UUID."""
        return self._locks[0].order()

    def open(self, on_progress: OnProgress) -> None:
        """Take the lock of each GPU, in an order that all processes have; of all or of none."""
        try:
            for lock in self._locks:
                lock.acquire(lambda text: on_progress(Progress(text)))
        except BaseException:
            self._release()
            raise

    def measure(self, group: PlannedGroup, settings: Settings, on_progress: OnProgress) -> Measured:
        """Measure a group here."""
        self._on_progress = on_progress
        if group.replicate != self._replicate:
            self.worker.close()  # replicates are of fresh processes
            self._replicate = group.replicate
        before, own = self.worker.sampling_s, dataclasses.replace(settings, device=str(self.device))
        self._measuring = True
        try:
            if self.ahead is not None:
                self.worker.begin()  # it starts while kernels are compiled
                self.ahead.wait_for(group, lambda text: on_progress(Progress(text, group)))
            records = GroupMeasurement(self.worker, group, own, self._known_failures).records()
        except NothingToRun as error:
            raise ExecutorLost(str(error), measuring=False) from None
        finally:
            self._measuring = False
        return Measured(records, tuple(self.worker.environments), self.worker.sampling_s - before)

    def interrupt(self, name: str, *, at_once: bool) -> bool:
        """End what is being measured in order, and what it waits for."""
        self.worker.interrupt(name, at_once=at_once)
        if self.ahead is not None:
            self.ahead.give_up()
        return self._measuring

    def stop(self) -> None:
        """End what is being measured, and what it waits for."""
        if self.ahead is not None:
            self.ahead.give_up()
        self.worker.stop()

    def close(self) -> None:
        """End the worker, and let other runs have the GPU."""
        self.worker.close()
        self._release()

    def _release(self) -> None:
        for lock in self._locks:
            lock.release()

    # ── what the worker says (`sweep.device_worker.Listener`) ──────────────────────────────────────

    def on_activity(self, text: str, group: PlannedGroup | None = None, backend: str | None = None) -> None:
        """Pass on what a worker is doing."""
        self._on_progress(Progress(text, group, backend))

    def on_record(self, group: PlannedGroup, record: Record) -> None:
        """Pass on a record of the group in flight."""
        self._on_progress(Progress(group=group, backend=record.backend, record=record))

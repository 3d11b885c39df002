"""Kernel time as recorded by the GPU (CUPTI activity records), through torch.profiler.

torch.profiler is used instead of `cupti-python` for three reasons: it comes with every torch and always matches
torch's CUPTI (cupti-python has to match to the minor version); only one of the two may own CUPTI's buffers in a
process; and its cost is small: on an H200's host 1 ms to start, 4 ms to stop and 3 ms to read a batch of 100 samples
(the first start in a process takes 3 to 5 s, before anything is timed).  The profiler's own parsing of the records,
which would triple that, is skipped.

Each call stands between two marker kernels, so its records are those between two markers on the device's time line,
whatever their names.  A sample is the span from the start of the first record to the end of the last.  Every batch is
verified to be complete: all markers are present, and every kernel launch that the driver saw has its kernel record.
A batch that fails this is not used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from attnbench.errors import Unavailable
from attnbench.machine.device import Device
from attnbench.measure.stage import Stage
from attnbench.measure.subject import Subject
from attnbench.measure.timer import Reading, Timer, Untimed

MARKER = "attnbench_marker"


class LostRecords(Unavailable):
    """The profiler dropped records of a batch."""


@dataclass(frozen=True, slots=True)
class Activity:
    """One record of the profiler; times in ns of the profiler's clock."""

    name: str
    start: int
    end: int
    correlation: int
    on_device: bool


class Cupti(Timer):
    """CUPTI's kernel records, attributed to calls by markers."""

    name = "cupti"
    title = "kernel time by CUPTI (torch.profiler)"
    devices = ("cuda",)
    tick_ms = 3.2e-5

    def probe(self, device: Device) -> None:
        """Require a CUDA build of torch whose profiler was built with CUPTI."""
        super().probe(device)
        import torch
        from torch.profiler import ProfilerActivity, supported_activities

        if not torch.cuda.is_available() or ProfilerActivity.CUDA not in supported_activities():
            raise Unavailable("cupti: this torch has no CUDA profiler; a CUDA build of torch, or --timer events")

    def measure(
        self, stage: Stage, batch: Sequence[tuple[int, Subject]], lead_s: float, announce: Callable[[int, str], None]
    ) -> list[Reading]:
        """Queue the whole batch under the profiler, then read its records; repeat once if some were lost."""
        try:
            return self._measure(stage, batch, lead_s, announce)
        except LostRecords:
            return self._measure(stage, batch, lead_s, announce)

    def _measure(
        self, stage: Stage, batch: Sequence[tuple[int, Subject]], lead_s: float, announce: Callable[[int, str], None]
    ) -> list[Reading]:
        hosts = []
        stage.end()
        with _recording() as found:
            offset_ns = time.time_ns() - time.perf_counter_ns()
            stage.begin(lead_s)
            for index, subject in batch:
                announce(index, "sample")
                stage.ready(subject)
                stage.mark()
                called = time.perf_counter_ns()
                subject.call()
                hosts.append((time.perf_counter_ns() - called) / 1e6)
                stage.mark()
            stage.end()
        readings = read(found, [subject.name for _, subject in batch], offset_ns)
        for reading, clock, host in zip(readings, stage.sm_mhz(len(batch)), hosts, strict=True):
            reading.sm_mhz, reading.host_ms = clock, host
        return readings


def read(activities: Iterable[Activity], names: Sequence[str], offset_ns: int = 0) -> list[Reading]:
    """Split the records of a batch into samples.

    Args:
        activities: all records of the batch, in any order.
        names: the subject of each sample, in order; each stands between two markers.
        offset_ns: the profiler's clock minus the host's monotonic clock.

    Raises:
        LostRecords: a marker or the record of a launch is missing.
        Untimed: a subject launched no kernel on the device.
    """
    activities = list(activities)
    launched = {a.correlation: a.end for a in activities if not a.on_device}
    device = sorted((a for a in activities if a.on_device), key=lambda a: a.start)
    marks = [i for i, a in enumerate(device) if a.name == MARKER]
    if len(marks) != 2 * len(names):
        raise LostRecords(f"cupti: {len(marks)} of {2 * len(names)} markers were recorded; --timer events")
    seen = {a.correlation for a in device}
    missing = [a for a in activities if not a.on_device and "LaunchKernel" in a.name and a.correlation not in seen]
    if missing:
        raise LostRecords(f"cupti: {len(missing)} of {len(launched)} launches have no kernel record; --timer events")
    samples = [device[first + 1 : last] for first, last in zip(marks[::2], marks[1::2], strict=True)]
    if idle := [name for name, records in zip(names, samples, strict=True) if not records]:
        words = f"cupti: {idle[0]} launched nothing on the device; a CPU function is timed on device cpu"
        raise Untimed(idle[0], words, idle)
    return [_reading(records, launched, offset_ns) for records in samples]


def _reading(records: Sequence[Activity], launched: dict[int, int], offset_ns: int) -> Reading:
    start, end = records[0].start, max(record.end for record in records)
    queued = max(launched.get(record.correlation, 0) for record in records)
    return Reading(
        (end - start) / 1e6,
        at_s=(start - offset_ns) / 1e9,
        busy_ms=_busy_ns(records) / 1e6,
        kernels=tuple(record.name for record in records),
        kernel_ms=tuple((record.end - record.start) / 1e6 for record in records),
        waited=len(records) > 1 and queued > start,
    )


def _busy_ns(records: Sequence[Activity]) -> int:
    """Return the length of the union of the records, which are sorted by start."""
    busy, reached = 0, 0
    for record in records:
        busy += max(0, record.end - max(record.start, reached))
        reached = max(reached, record.end)
    return busy


@contextmanager
def _recording() -> Iterator[list[Activity]]:
    """Record the device's activity; the list is filled when the block ends."""
    import torch
    from torch.autograd import DeviceType

    profiler: Any = torch.autograd.profiler.profile(use_cpu=False, use_device="cuda", use_kineto=True, acc_events=True)
    profiler._prepare_trace()
    profiler._start_trace()
    found: list[Activity] = []
    try:
        yield found
    finally:
        result: Any = torch.autograd._disable_profiler()
    for event in result.events():
        on_device = event.device_type() == DeviceType.CUDA
        if not (on_device and event.is_user_annotation()):
            start = event.start_ns()
            found.append(Activity(event.name(), start, start + event.duration_ns(), event.correlation_id(), on_device))

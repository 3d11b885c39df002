"""From what happened to a backend to its record."""

from __future__ import annotations

import hashlib
import inspect
import shlex
import statistics
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnbench.backends.base import Backend
from attnbench.measure.sampling import Timing
from attnbench.record import Error, Memory, PlannedGroup, PowerSeries, Rate, Record, Settings, Status, Time, Work
from attnbench.workloads.base import Workload

LOWEST_SHRINK = 1 / 64


class RecordBuilder:
    """Gathers what becomes the record of one backend."""

    def __init__(
        self, group: PlannedGroup, settings: Settings, name: str, backend: Backend, workload: Workload, case: Any,
        device: str,
    ) -> None:
        self.group, self.settings, self.name, self.backend = group, settings, name, backend
        self.workload, self.case, self.device = workload, case, device
        self.errors: Mapping[str, Error] = {}
        self.notes: list[str] = []
        self.memory: Memory | None = None
        self.executed_flops: int | None = None
        self.repeated = False
        "opened once more as the baseline of another part: its record stands already"

    def failed(self, status: Status, reason: str) -> Record:
        """A record without a time."""
        return self._record(status=status, reason=reason, errors=self.errors)

    def oom(self, memory_bytes: int | None) -> Record:
        """Out of memory although alone; says what would fit."""
        return self.failed(Status.OOM, f"out of device memory although alone{self._what_fits(memory_bytes)}")

    def passed_check(self) -> Record:
        """Correct; nothing was timed."""
        return self._record(status=Status.PASSED, errors=self.errors, memory=self.memory, work=self._work())

    def passed(
        self, time: Time, timing: Timing, *, timers: Mapping[str, Time], phases: Mapping[str, Time],
        power: PowerSeries | None,
    ) -> Record:
        """Correct and timed."""
        work, median_ms = self._work(), statistics.median(timing.samples_ms)
        short = power is not None and median_ms < 1e3 * _period_s(power)
        return self._record(
            status=Status.PASSED, errors=self.errors, memory=self.memory, work=work, time=time, timers=timers,
            phases=phases, kernels=timing.kernels, kernel_ms=timing.kernel_ms,
            power_w=None if short else power,
            rate=Rate.of(work, median_ms, percent_of_peak(work, median_ms, self.case.dtype, self.device)),
            notes=(*self.notes, *timing.notes),
        )

    def _work(self) -> Work:
        work: Work = self.workload.work(self.case)
        return Work(flops=work.flops, bytes=work.bytes, executed_flops=self.executed_flops)

    def _record(self, **fields: Any) -> Record:
        config = self.backend.config
        fields.setdefault("notes", tuple(self.notes))
        return Record(
            workload=self.group.workload, case=self.group.case, case_id=self.group.case_id, group=self.group.group,
            replicate=self.group.replicate, backend=self.name, version=self.backend.version(),
            config=config.short if config else None, source_hash=source_hash(self.backend),
            repro=self.repro(), **fields,
        )

    def repro(self) -> str:
        """The command that measures this row again."""
        words = ["attnbench", "compare"]
        if self.group.workload != "attention":
            words += ["--workload", self.group.workload]
        words += self.workload.flags(self.case)
        wanted = [self.name]
        if self.settings.baseline and self.settings.baseline != self.name:
            wanted.insert(0, self.settings.baseline)
        words += ["--backends", ",".join(wanted), "--device", self.settings.device]
        defaults = Settings()
        for field in ("timer", "l2", "regime", "warmup", "iterations", "input", "seed", "rel_ci", "max_seconds"):
            value = getattr(self.settings, field)
            if value != getattr(defaults, field) and value is not None:
                words += [f"--{field.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
        return shlex.join(words)

    def _what_fits(self, memory_bytes: int | None) -> str:
        factor = 0.5
        while factor >= LOWEST_SHRINK:
            smaller = self.workload.shrink(self.case, factor)
            if smaller is None:
                break
            if memory_bytes is None or self.workload.work(smaller).bytes < memory_bytes:
                return f"; about {factor:g} of its memory: {' '.join(self.workload.flags(smaller))}"
            factor /= 2
        return "; no smaller case of this shape would fit"


def percent_of_peak(work: Work, median_ms: float, dtype: str, device: str) -> float | None:
    """Share of the data sheet's peak that bounds the case (roofline); None where the card is not listed."""
    from attnbench.machine.peaks import peak

    if device.startswith("cpu"):
        return None
    import torch

    found = peak(torch.cuda.get_device_name(device), dtype)
    if found is None or found.tflops is None or found.memory_tbps is None:
        return None
    least_ms = max(work.flops / found.tflops, work.bytes / found.memory_tbps) / 1e9
    return 100 * least_ms / median_ms


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, whoever raised it."""
    import torch

    words = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in words or "can't allocate memory" in words)
    )


def reason_of(error: BaseException, phase: str) -> str:
    """One line: the phase, the exception, and the place in the backend's code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__} during {phase}: {text[:400]}{where}"


def source_hash(backend: Backend) -> str | None:
    """Short hash of the file that defines the backend."""
    try:
        return hashlib.sha256(Path(inspect.getfile(type(backend))).read_bytes()).hexdigest()[:12]
    except (OSError, TypeError):
        return None


def _period_s(power: PowerSeries) -> float:
    """How far apart the readings of a power series are."""
    gaps = [later - earlier for earlier, later in zip(power.at_s, power.at_s[1:], strict=False)]
    return min(gaps) if gaps else 0.0

"""Turns what happened to a backend into its record."""

from __future__ import annotations

import dataclasses
import inspect
import math
import shlex
import statistics
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attnbench.backends.base import Backend
from attnbench.backends.registry import is_shipped
from attnbench.errors import AttnbenchError, Crashed, UsageError, message, out_of_memory, refusal
from attnbench.machine.advice import install_line
from attnbench.machine.device import Device
from attnbench.measure.sampling import Timing
from attnbench.record import (
    Error,
    Memory,
    PlannedGroup,
    PowerSeries,
    Rate,
    Record,
    Settings,
    Status,
    Time,
    Work,
    Yardstick,
)
from attnbench.worker.private import without_paths
from attnbench.worker.source import hash_of
from attnbench.workloads.base import Case, Workload, load_workload

LOWEST_SHRINK = 1 / 64
CHOSEN_WORK = {"flops": "useful_flops", "bytes": "least_bytes"}
"Fields of `Work` and the counters that replace them for a choice (`workloads.base.Choice.measures`)."


class RecordBuilder:
    """Collects the fields of one backend's record."""

    def __init__(
        self,
        group: PlannedGroup,
        settings: Settings,
        name: str,
        workload: Workload,
        case: Case,
        *,
        device: Device,
        files: Sequence[str],
    ) -> None:
        self.group, self.settings, self.name = group, settings, name
        self.workload, self.case, self.device, self.files = workload, case, device, files
        self.version: str | None = None
        self.variant: str | None = None
        self.config: str | None = None
        self.source_hash: str | None = None
        self.errors: Mapping[str, Error] = {}
        self.notes: list[str] = []
        self.memory: Memory | None = None
        self.ceilings: Mapping[str, float | None] = {}
        self.executed_flops: int | None = None
        self.devices = 1
        self.counters: dict[str, float | None] = {}

    def of(self, backend: Backend) -> None:
        """Copy from the backend the fields that describe it."""
        self.config = backend.config.short if backend.config else None
        self.variant = backend.variant_of(self.case)
        self.source_hash = source_hash(backend)
        version = backend.version()
        if not isinstance(version, str | None):
            raise UsageError(refusal(self.name, "version()", repr(version)[:80], "is not text", "a str or None"))
        self.version = version

    def note(self, *words: str) -> None:
        """Add notes, each once."""
        self.notes += [one for one in dict.fromkeys(words) if one not in self.notes]

    def failed(self, status: Status, reason: str) -> Record:
        """Return a record without a time."""
        return self._record(status=status, reason=install_line(reason), errors=self.errors)

    def oom(self, memory_bytes: int | None, words: str = "although alone") -> Record:
        """Return an out-of-memory record that says what would fit."""
        return self.failed(Status.OOM, f"out of device memory {words}{self._what_fits(memory_bytes)}")

    def passed_check(self) -> Record:
        """Return a record of a correct launch that was not timed."""
        return self._record(
            status=Status.PASSED, errors=self.errors, memory=self.memory, work=self._work(), counters=self.counters
        )

    def passed(
        self,
        time: Time,
        timing: Timing,
        *,
        timers: Mapping[str, Time],
        phases: Mapping[str, Time],
        power: PowerSeries | None,
        yardsticks: Mapping[str, Yardstick],
    ) -> Record:
        """Return a record of a correct and timed launch."""
        work, median_ms = self._work(), statistics.median(timing.samples_ms)
        short = power is not None and median_ms < 1e3 * _period_s(power)
        share = percent_of_peak(work, self.devices * median_ms, self.case.dtype, self.device)
        if share is not None and share > 100.0:
            self.note(
                f"{share:.0f} % of the {self.case.dtype} peak of the data sheet, which thus does not bound it "
                "(8-bit arithmetic, data in the L2): no share is given"
            )
        return self._record(
            status=Status.PASSED,
            errors=self.errors,
            memory=self.memory,
            work=work,
            time=time,
            timers=timers,
            phases=phases,
            yardsticks=yardsticks,
            ceilings=self.ceilings,
            kernels=timing.kernels,
            counters=self.counters,
            kernel_launches=timing.kernel_launches,
            kernel_ms=timing.kernel_ms,
            power_w=None if short else power,
            rate=Rate.of(work, median_ms, share),
            notes=(*self.notes, *timing.notes),
        )

    def _work(self) -> Work:
        work: Work = (
            self.workload.work(self.case) if self.variant is None else self.workload.work_of(self.variant, self.case)
        )
        # The work of a choice is the work of what was chosen; the check has counted it.
        chosen = {
            field: int(count) for field, name in CHOSEN_WORK.items() if (count := self.counters.get(name)) is not None
        }
        return dataclasses.replace(work, executed_flops=self.executed_flops, **chosen)

    def _record(self, **fields: Any) -> Record:
        fields["notes"] = tuple(map(without_paths, fields.get("notes", self.notes)))
        fields["reason"] = without_paths(reason) if (reason := fields.get("reason")) else None
        version = without_paths(self.version) if isinstance(self.version, str) else self.version
        return Record(
            workload=self.group.workload,
            case=self.group.case,
            case_id=self.group.case_id,
            group=self.group.group,
            replicate=self.group.replicate,
            backend=self.name,
            input=self.settings.input,
            version=version,
            config=self.config,
            source_hash=self.source_hash,
            repro=repro(self.group, self.settings, self.name, self.files),
            **fields,
        )

    def _what_fits(self, memory_bytes: int | None) -> str:
        tables, factor = self.workload.table_bytes(self.case), 0.5
        if memory_bytes is not None and tables > memory_bytes // 2:  # whatever the shape, they stay
            factor = 0.0
        while factor >= LOWEST_SHRINK:
            smaller = self.workload.shrink(self.case, factor)
            if smaller is None:
                break
            if memory_bytes is None or self.workload.work(smaller).bytes < memory_bytes:
                return f"; about {factor:g} of its memory: {' '.join(self.workload.flags(smaller))}"
            factor /= 2
        return "; no smaller case of this shape would fit"


def repro(group: PlannedGroup, settings: Settings, name: str, files: Sequence[str]) -> str:
    """The command that measures (or only checks) one backend of a group again, beside the baseline."""
    workload = load_workload(group.workload)
    words = ["attnbench", "compare" if settings.measure else "check"]
    if group.workload != "attention":
        words += ["--workload", group.workload]
    words += workload.flags(workload.case(group.case))
    wanted = list(dict.fromkeys(one for one in (settings.baseline, name) if one))
    if not all(map(is_shipped, wanted)):
        wanted += [Path(file).name for file in files]
    words += ["--backends", ",".join(wanted), "--device", settings.device]
    always: tuple[str, ...] = ()
    if settings.measure:  # the suite behind `compare` has counts of its own
        always = ("rel_ci", "max_seconds") if settings.iterations is None else ("warmup", "iterations")
    for field in (*always, "timer", "l2", "regime", "input", "seed", "timeout", "lock_clocks"):
        value = getattr(settings, field)
        if field in always or value != getattr(Settings(), field):
            words += [f"--{field.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def percent_of_peak(work: Work, median_ms: float, dtype: str, device: Device) -> float | None:
    """Return the share of the data sheet's peak that bounds the case (roofline); None where the card is not listed.

    If the launch skips work, only executed work counts: skipped work cannot use the card.
    """
    from attnbench.machine.peaks import peak

    name = device.named().name
    found = None if name is None else peak(name, dtype)
    if found is None or found.tflops is None or found.memory_tbps is None:
        return None
    least_ms = max(work.least_flops / found.tflops, work.bytes / found.memory_tbps) / 1e9
    return 100 * least_ms / median_ms


def status_of(error: BaseException) -> Status:
    """Return the status of a backend that raised."""
    if isinstance(error, Crashed):
        return Status.CRASHED
    return Status.OOM if out_of_memory(error) else Status.FAILED


def reason_of(error: BaseException, phase: str) -> str:
    """Return one line: the message of our own errors, else the phase, the exception, and where it was raised."""
    if isinstance(error, AttnbenchError):
        return message(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = without_paths(" ".join(message(error).split())) or "no message"
    return f"{type(error).__name__} during {phase}: {text[:400]}{where}"


def source_hash(backend: Backend) -> str | None:
    """Return a short hash of the file that defines the backend and of the files it depends on."""
    try:
        return _hash_once(Path(inspect.getfile(type(backend))).resolve())
    except (OSError, TypeError):
        return None


@cache
def _hash_once(path: Path) -> str | None:
    """Hash once per process: a worker runs the code it has imported, even if files are edited later."""
    return hash_of(path)


def _period_s(power: PowerSeries) -> float:
    """Return the interval between the readings of a power series; infinity where there are fewer than two."""
    gaps = [later - earlier for earlier, later in zip(power.at_s, power.at_s[1:], strict=False)]
    return min(gaps) if gaps else math.inf

"""What `attnbench doctor` finds out, before it is shown or written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnbench.record import Environment

if TYPE_CHECKING:
    from attnbench.machine.advice import Advice
    from attnbench.machine.compile_cache import CompileCache
    from attnbench.machine.container import Finding
    from attnbench.machine.nvml import GpuProcess, GpuState
    from attnbench.machine.tools import Profiler


@dataclass(frozen=True, slots=True)
class BackendRow:
    """One backend as doctor found it."""

    name: str
    workload: str
    title: str
    state: str
    "ready, untested (it imports; no run of it is on record), missing, broken, not here (another kind of device)"
    version: str | None
    reason: str | None
    install: str
    tested: str | None
    compiles: bool


@dataclass(frozen=True, slots=True)
class GpuReport:
    """The card as NVML describes it."""

    name: str | None
    driver: str | None
    state: GpuState
    persistence: bool | None
    other_processes: tuple[GpuProcess, ...] | None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything doctor says."""

    device: str
    environment: Environment
    peak: str | None
    gpu: GpuReport | None
    gpu_reason: str | None
    "why there is no GPU, or nothing is known of its state"
    profilers: list[Profiler]
    counters_for_all: bool | None
    tuning: list[Advice]
    updates: list[Advice]
    max_jobs: int
    compile_cache: CompileCache | None
    "of Triton's kernels; None without a GPU"
    container: list[Finding]
    "what the container lets a measurement do; empty outside of one"
    backends: list[BackendRow]

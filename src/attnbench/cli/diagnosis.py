"""The findings of `attnbench doctor`, before they are printed or written."""

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
    """One backend in the report."""

    name: str
    workload: str
    title: str
    state: str
    "ready, untested (it imports; no recorded run), missing, broken, not here (another kind of device)"
    version: str | None
    reason: str | None
    install: str
    tested: str | None
    compiles: bool


@dataclass(frozen=True, slots=True)
class GpuReport:
    """The GPU as NVML describes it."""

    name: str | None
    driver: str | None
    state: GpuState
    persistence: bool | None
    other_processes: tuple[GpuProcess, ...] | None


@dataclass(frozen=True, slots=True)
class Report:
    """The complete report."""

    device: str
    environment: Environment
    peak: str | None
    gpu: GpuReport | None
    gpu_reason: str | None
    "why there is no GPU, or why its state is unknown"
    profilers: list[Profiler]
    counters_for_all: bool | None
    tuning: list[Advice]
    updates: list[Advice]
    max_jobs: int
    compile_cache: CompileCache | None
    "Triton's; None without a GPU"
    container: list[Finding]
    "what the container permits a measurement to do; empty outside a container"
    backends: list[BackendRow]

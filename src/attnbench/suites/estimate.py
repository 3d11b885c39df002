"""How long a plan will take, said as a range and from what.

Only the limits of the plan are known before it runs (`max_seconds`, counts, exact work); how fast a
backend is, is what the run is to find out.  So the estimate is two numbers, and the constants below
are deliberately wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.backends.base import Backend
from attnbench.backends.registry import parse_selector
from attnbench.record import PlannedGroup, Run
from attnbench.suites.user_backends import known_backends
from attnbench.workloads.base import load_workload

WORKER_S = (2.0, 12.0)
"""Starting a worker: importing torch, opening the device."""
OPEN_S = (0.05, 1.0)
"""Opening a backend and checking its first output."""
COMPILE_S = (2.0, 40.0)
"""The first call of a backend that compiles."""
SAMPLING_SHARE = 0.1
"""Of `max_seconds`, what an easy group needs until its interval is narrow enough."""
FLOPS_PER_S = {"cpu": (2e10, 1e12), "cuda": (1e13, 8e14)}
"""Slowest and fastest plausible attention."""
ORACLE_FLOPS_PER_S = {"cpu": 1e10, "cuda": 1e13}


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds a run is likely to take."""

    low_s: float
    high_s: float
    basis: str
    "what the range stands on"

    def __str__(self) -> str:
        return f"{_words(self.low_s)} to {_words(self.high_s)}: {self.basis}"


def estimate(run: Run, *, files: Sequence[str] = ()) -> Estimate:
    """Estimate what is left of a run's plan.

    Args:
        run: with its plan and settings; groups that `records` already covers are not counted.
        files: paths of --backends files.
    """
    kind = run.settings.device.partition(":")[0]
    backends = known_backends(files)
    done = {(record.group, record.backend) for record in run.records}
    left = [group for group in run.plan if any((group.group, name) not in done for name in group.backends)]
    workers = len({group.replicate for group in left})
    low, high = WORKER_S[0] * workers, WORKER_S[1] * workers
    for group in left:
        runnable = [backends[name] for name in (parse_selector(one)[0] for one in group.backends)
                    if name in backends and kind in backends[name].devices]
        least, most = _group(run, group, runnable, kind)
        low, high = low + least, high + most
    return Estimate(low, high, _basis(run))


def _group(run: Run, group: PlannedGroup, runnable: Sequence[Backend], kind: str) -> tuple[float, float]:
    settings, workload = run.settings, load_workload(group.workload)
    flops = workload.work(workload.case(group.case)).flops
    slow, fast = FLOPS_PER_S[kind]
    compiling = sum(backend.compiles for backend in runnable)
    low = OPEN_S[0] * len(runnable) + COMPILE_S[0] * compiling
    high = OPEN_S[1] * len(runnable) + COMPILE_S[1] * compiling + flops / ORACLE_FLOPS_PER_S[kind]
    if not settings.measure:
        return low, high
    if settings.iterations is not None:
        calls = (settings.iterations + (settings.warmup or 0)) * len(runnable)
        return low + calls * flops / fast, high + calls * flops / slow
    return low + SAMPLING_SHARE * settings.max_seconds, high + settings.max_seconds


def _basis(run: Run) -> str:
    settings = run.settings
    if not settings.measure:
        return "checks only; how fast the backends are is a guess"
    if settings.iterations is not None:
        counts = f"{settings.warmup or 0} + {settings.iterations} launches a row"
        return f"{counts}; how fast the backends are is a guess"
    return f"at most {settings.max_seconds:g} s of sampling a group; set-up and compiling are guesses"


def _words(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.2g} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"

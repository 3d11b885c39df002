"""Estimate how long a plan takes on this machine, group by group.

The plan fixes counts, limits and exact work; a few small products measure how fast a CPU is at the moment.  The shares
below come from committed runs, see the comments.  The speed of a backend remains a guess, and the noise of a CPU is
derived from its load.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from attnbench.backends.base import Backend, Machine
from attnbench.backends.describe import Described
from attnbench.backends.registry import parse_selector, resolve
from attnbench.errors import Unavailable, Unsupported, UsageError
from attnbench.machine.device import Device
from attnbench.machine.fingerprint import usable_cores
from attnbench.record import PlannedGroup, Run, Settings
from attnbench.suites.user_backends import known_backends
from attnbench.workloads.base import Case, load_workload

WORKER_S = {"cpu": 2.5, "cuda": 8.0}
"""Starting a worker: importing torch, opening the device."""
COMPILE_S = {"cpu": 10.0, "cuda": 4.0}
"""First call of a backend that compiles; later shapes take the share `AGAIN` of it."""
AGAIN = 0.1
OPEN_S = {"cpu": 0.05, "cuda": 0.1}
"""Opening a backend and comparing its outputs, without the calls themselves."""
CALL_S = {"cpu": 1e-4, "cuda": 2e-5}
"""Minimum time of a call."""
CUDA_FLOPS_PER_S = 2e14
SHARE = {False: 0.5, True: 0.12}
"""Throughput of a fused kernel and of plain PyTorch, as shares of the machine's matrix products."""
PLAIN = ("eager", "sdpa-math", "hstu-eager", "hstu-bsa-eager", "sparse-eager", "sdpa-masked")
ORACLE_CALLS = 20
"""Cost of the oracle (double precision, unfused, two sets of data) in calls of a fused kernel."""
CHECK_CALLS = 8
"""Calls of each backend for its checks and its memory."""
INSPECTION_CALLS = 6
"""Calls of each backend in an inspection; a group has at least one inspection."""
INSPECTED_EVERY = 5.0
"""Time of sampling between two inspections, in times of an inspection (`measure.inspections.TIMES`)."""
WARMUP_S = 0.1
FEWEST_ROUNDS, EASY_ROUNDS = 10, 400
"""Rounds until the stopping rule first applies, and until the interval of a quiet group is narrow enough."""
GPU_SAMPLING = 0.5
"""Share of `max_seconds` that a group on a GPU takes: half of those in benchmarks/results stop earlier."""
ALL_TIMERS = 3
"""Timers on a GPU that any launch can be timed by; a fourth needs one that can be captured in a graph."""
BUSY = 0.3
"""Load per core above which a CPU is too noisy for the interval to be reached before `max_seconds`."""
TRIAL, TRIALS = 64, 300
"""Size and count of the matrix products that measure the speed of a core.  They are too small for threads, which
wait for each other on a busy machine, and so short that some are not interrupted."""
DAY_S = 86400.0
"""A single group that takes longer is reported as too large for the device."""
MONTH_S = 30 * DAY_S
"""Longer estimates are shown without a number."""
MOST_SLOWED = 8.0
"""Limit of the slow-down by other processes: the scheduler gives a new process its share."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated duration of a run, in seconds."""

    groups: Mapping[str, float]
    "seconds of each remaining group"
    start_s: float
    "starting workers"
    basis: str
    "what the estimate is based on"
    executors: int = 1
    "how many groups are measured at a time"
    lost: Mapping[str, str] = field(default_factory=dict)
    "of the plan's backends those that will only say what they miss here, and that"

    @property
    def seconds(self) -> float:
        """Seconds of everything that remains."""
        whole, longest = sum(self.groups.values()), max(self.groups.values(), default=0.0)
        return self.start_s + max(longest, whole / self.executors)

    def __str__(self) -> str:
        time = "more than a month" if self.seconds > MONTH_S else f"about {_words(self.seconds)}"
        if max(self.groups.values(), default=0.0) > DAY_S:
            return f"{time}: a case of this size is not for this device; a smaller case, or a GPU"
        return f"{time}: {self.basis}"


def estimate(run: Run, *, files: Sequence[str] = (), executors: int = 1, jobs: int = 0) -> Estimate:
    """Estimate the remaining time of a run's plan.

    Args:
        run: run with its plan and settings; groups that `records` already covers are not counted.
        files: paths of --backends files.
        executors: number of groups measured at a time.
        jobs: processes that compile in advance the kernels that can be compiled without a GPU.

    Raises:
        UsageError: the run names no device.
    """
    kind = Device.parse(run.settings.device).kind
    backends = known_backends(files)
    done = {(record.group, record.backend) for record in run.records}
    left = [group for group in run.plan if any((group.group, name) not in done for name in group.backends)]
    groups: dict[str, float] = {}
    named = {one: backends[name] for group in left for one in group.backends
             if (name := parse_selector(one)[0]) in backends}  # fmt: skip
    lost = {one: why for one, backend in named.items() if (why := _missing(backend, kind))}
    replicate, compiled = -1, set[str]()
    for group in left:
        if group.replicate != replicate:  # each has a fresh process
            replicate, compiled = group.replicate, set()
        runnable = [named[one] for one in group.backends if one in named and one not in lost]
        groups[group.group] = _group(run.settings, group, runnable, kind, compiled, jobs)
        compiled |= {backend.name for backend in runnable}
    workers = len({group.replicate for group in left})
    return Estimate(groups, _slowed(kind) * WORKER_S[kind] * workers, _basis(run), executors, lost)


def refused(run: Run, *, files: Sequence[str] = (), lost: Collection[str] = ()) -> dict[str, str]:
    """Return the rows whose backend refuses all or some of their cases, and its words.

    What depends on the card or on a user's file is not known before the run.

    Args:
        run: run with its plan; every case it still has is checked.
        files: paths of --backends files.
        lost: rows that cannot run here at all.
    """
    machine = Machine(Device.parse(run.settings.device).kind)
    backends = known_backends(files)
    cases: dict[str, dict[str, str]] = {}
    for group in run.plan:
        case = load_workload(group.workload).case(group.case)
        for row in (one for one in group.backends if one not in lost):
            backend = backends.get(parse_selector(row)[0])
            if backend is not None and not isinstance(backend, Described):
                cases.setdefault(row, {})[group.case_id] = _refusal(row, backend, case, machine)
    found = {row: [why for why in of_row.values() if why] for row, of_row in cases.items()}
    return {
        row: whys[0] + ("" if len(whys) == len(cases[row]) else f" ({len(whys)} of {len(cases[row])} cases)")
        for row, whys in found.items()
        if whys
    }


def _refusal(row: str, backend: Backend, case: Case, machine: Machine) -> str:
    """What the row will say instead of running this case; empty where nothing keeps it from that."""
    name, short = parse_selector(row)
    try:
        found = backend if short is None else resolve(row, case)
        found.check(case, machine)
    except (Unsupported, UsageError) as why:  # the latter: no such configuration of this case
        return str(why).removeprefix(f"{name}: ")
    except Exception:  # whatever else a backend raises becomes its record in the run
        return ""
    return ""


def _missing(backend: Backend, kind: str) -> str:
    """What keeps it from running here whatever the case; empty where nothing does."""
    if kind not in backend.devices:
        return f"device={kind} is not supported; {' and '.join(backend.devices)}"
    try:
        backend.probe()
    except Unavailable as why:
        return str(why).removeprefix(f"{backend.name}: ")
    return ""


def _group(
    settings: Settings, group: PlannedGroup, runnable: Sequence[Backend], kind: str, compiled: set[str], jobs: int = 0
) -> float:
    """Return the seconds of a group; backends in `compiled` were called by this process before."""
    workload = load_workload(group.workload)
    slowed = _slowed(kind)
    flops = workload.planned_flops(workload.case(group.case))
    fused_s = slowed * flops / (SHARE[False] * _flops_per_s(kind))
    calls = [slowed * CALL_S[kind] + fused_s * SHARE[False] / SHARE[backend.name in PLAIN] for backend in runnable]
    compiling = sum(
        slowed
        * _first_call_s(backend, kind)
        * (AGAIN if backend.name in compiled else 1.0)
        / _side_by_side(backend, kind, jobs)
        for backend in runnable
        if backend.compiles
    )
    round_s = sum(calls)
    seconds = compiling + slowed * OPEN_S[kind] * len(runnable) + ORACLE_CALLS * fused_s + CHECK_CALLS * round_s
    if not settings.measure or not runnable:
        return seconds
    sampling = _sampling(settings, round_s, kind)
    # At most one per second, and no more often than their own duration allows.
    inspections = max(1.0, sampling / max(1.0, INSPECTED_EVERY * INSPECTION_CALLS * round_s))
    after = workload.calls_after(workload.case(group.case))
    return seconds + sampling + (INSPECTION_CALLS * inspections + after) * round_s


def _first_call_s(backend: Backend, kind: str) -> float:
    """Return the seconds of a first call that compiles; on a CPU ranks compute with torch, and only have to start."""
    return WORKER_S[kind] if backend.in_ranks and kind == "cpu" else COMPILE_S[kind]


def _side_by_side(backend: Backend, kind: str, jobs: int) -> int:
    """Return how many of a backend's kernels are compiled at a time."""
    return max(1, jobs) if backend.ahead and kind == "cuda" else 1


def _sampling(settings: Settings, round_s: float, kind: str) -> float:
    if settings.iterations is not None:
        return (settings.iterations + (settings.warmup or 0)) * _timers(settings.timer, kind) * round_s
    least = FEWEST_ROUNDS * round_s
    if kind == "cuda":
        return WARMUP_S + max(least, GPU_SAMPLING * settings.max_seconds)
    noisy = os.getloadavg()[0] > BUSY * (usable_cores() or 1)  # times vary too much to stop early
    easy = settings.max_seconds if noisy else EASY_ROUNDS * round_s
    return WARMUP_S + max(least, min(settings.max_seconds, easy))


def _timers(setting: str, kind: str) -> int:
    """Return how many timers measure, each with the iterations of the settings."""
    if kind == "cpu":
        return 1
    return ALL_TIMERS if setting == "all" else 1 + setting.count(",")


def _slowed(kind: str) -> float:
    """Return the factor by which other processes on the cores slow work down."""
    load = os.getloadavg()[0] / (usable_cores() or 1)
    return min(max(1.0, load), MOST_SLOWED) if kind == "cpu" else 1.0


@cache
def _flops_per_s(kind: str) -> float:
    """Return the FLOP/s of a plain matrix product on the idle device: for a CPU, one core's best times all cores."""
    if kind != "cpu":
        return CUDA_FLOPS_PER_S
    import numpy

    matrix: Any = numpy.ones((TRIAL, TRIAL), numpy.float32)
    times = []
    for _ in range(TRIALS):
        started = time.perf_counter()
        matrix @ matrix
        times.append(time.perf_counter() - started)
    return 2.0 * TRIAL**3 / max(min(times), 1e-9) * (usable_cores() or 1)


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
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.2g} h"
    return f"{seconds / 86400:.0f} days"

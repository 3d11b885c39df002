"""The frozen data of a run: stored in run files, sent by the worker, read by every report.  Imports without torch.

Times are milliseconds, memory MiB, clocks MHz, power watts, unless a field's name says otherwise.
An unknown value is `None`, never 0: `Record.reason` or `Record.notes` says why.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, Literal, TypeVar

from attnbench.errors import RunFileError
from attnbench.text import Spelled, check_case, check_depth, check_id, shown

SCHEMA = 1  # version of the run file; a reader refuses a newer one
INTERRUPTED = "interrupted"  # `Time.stopped_by` of a row with too few samples, because its run was ended
T = TypeVar("T")


class Status(StrEnum):
    """Outcome of one backend on one case."""

    PASSED = "passed"
    INCORRECT = "incorrect"
    SKIPPED = "skipped"
    OOM = "oom"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Time(Spelled):
    """Samples of one launch and the statistics derived from them (`stats.summary.summarise`)."""

    timer: str
    "cupti, events, graph, reported, wall; imported if another program's file has the time"
    l2: str | None
    "cold or warm"
    regime: str | None
    "burst, sustained, or cpu"
    stopped_by: str | None
    "rel-ci, max-seconds, iterations, interrupted"
    num_samples: int | None
    median_ms: float | None
    mean_ms: float | None
    std_ms: float | None = None
    "n-1; None for one sample"
    min_ms: float | None
    max_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    ci_low_ms: float | None = None
    ci_high_ms: float | None = None
    "95 % interval of the median; None below six samples"
    busy_ms: float | None = None
    "median of the time in which at least one kernel ran; the span minus the gaps"
    host_ms: float | None = None
    "median CPU time of one launch call"
    setup_ms: float | None = None
    "time to open the session"
    first_call_ms: float | None = None
    "first launch, including compilation"
    tick_ms: float | None = None
    "resolution of the timer; ratios of times of a few ticks need it"
    other_cores: float | None = None
    "CPU cores used by other processes during sampling; only for a run on a CPU"
    samples_ms: tuple[float, ...] = field(default=(), repr=False)
    rounds: tuple[int, ...] = field(default=(), repr=False)
    "round of each sample: samples of one round of one group form a pair"
    at_s: tuple[float, ...] = field(default=(), repr=False)
    "seconds since the start of the group"
    sm_mhz: tuple[float | None, ...] = field(default=(), repr=False)
    "mean SM clock around each sample"


@dataclass(frozen=True, kw_only=True, slots=True)
class Yardstick:
    """Known work, timed by the same timer in the same rounds as `time`: a change of it is one of the machine."""

    flops: int
    bytes: int
    samples_ms: tuple[float, ...]
    rounds: tuple[int, ...]
    sm_mhz: tuple[float | None, ...] = field(default=(), repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerSeries:
    """Board power and temperature during the sampling of a group, by the driver's own counter."""

    at_s: tuple[float, ...] = field(default=(), repr=False)
    watts: tuple[float | None, ...] = field(default=(), repr=False)
    celsius: tuple[float | None, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Peak of the allocator, including inputs and outputs but not the harness; measured alone."""

    peak_allocated_mb: float | None = None
    peak_reserved_mb: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Useful work of the case; `executed_flops` is the launch's, `dense_flops` a dense kernel's on a sparse case."""

    flops: int
    bytes: int
    executed_flops: int | None = None
    dense_flops: int | None = None

    @property
    def least_flops(self) -> int:
        """FLOPs for the share of a peak: executed ones if the launch skips some useful ones, else useful ones."""
        return min(self.flops, self.executed_flops or self.flops)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """Work over the median time; `effective_tflops` counts the dense FLOPs of a sparse case."""

    tflops: float | None = None
    executed_tflops: float | None = None
    effective_tflops: float | None = None
    gbps: float | None = None
    percent_of_peak: float | None = None
    "share of the data-sheet peak that bounds the case; None if unknown, or if that peak does not bound the launch"
    peak_counts: Literal["useful", "executed"] | None = None

    @classmethod
    def of(cls, work: Work, median_ms: float, percent_of_peak: float | None = None) -> Rate:
        """Return the work over a median time; the caller, who knows the GPU, gives the share of the peak."""
        share = None if (percent_of_peak or 0.0) > 100.0 else percent_of_peak  # 8-bit arithmetic, data in the L2
        useful, executed, effective = (
            None if flops is None else flops / median_ms / 1e9
            for flops in (work.flops, work.executed_flops, work.dense_flops)
        )
        return cls(
            tflops=useful,
            executed_tflops=executed,
            effective_tflops=effective,
            gbps=work.bytes / median_ms / 1e6,
            percent_of_peak=share,
            peak_counts=None if share is None else "useful" if work.least_flops == work.flops else "executed",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Error:
    """Error of one output or gradient, and of its worst head, against the oracle; None for NaN or infinity."""

    max_abs: float | None
    rel_l1: float | None
    head_rel_l1: float | None = None
    rmse: float | None
    cosine: float | None
    budget: float
    "largest `max_abs` accepted"
    rel_l1_budget: float | None = None
    "largest `rel_l1` accepted; None is no bound"
    head_rel_l1_budget: float | None = None
    ok: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Speedup(Spelled):
    """Median of baseline time / own time within rounds; above 1 is faster than the baseline."""

    baseline: str
    ratio: float
    ci_low: float | None = None
    ci_high: float | None = None
    verdict: Literal["faster", "slower", "same", "unclear"] = "unclear"


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment(Spelled):
    """The machine and its software.  No host name, user or path."""

    os: str
    python: str
    torch: str | None = None
    triton: str | None = None
    cuda: str | None = None
    driver: str | None = None
    cudnn: str | None = None
    cpu: str | None = None
    cores: int | None = None
    ram_gb: float | None = None
    gpu: str | None = None
    gpu_mem_gb: float | None = None
    gpu_uuid: str | None = None
    sm_count: int | None = None
    sm_max_mhz: int | None = None
    l2_mb: float | None = None
    power_limit_w: float | None = None
    packages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Record(Spelled):
    """One case × backend with its outcome.  The status decides which blocks may be present."""

    workload: str
    case: Mapping[str, Any]
    case_id: str
    group: str
    backend: str
    input: str | None = None
    "values of its inputs (`Settings.input`); None in another program's file, and in files of before it was recorded"
    version: str | None = None
    config: str | None = None
    "short form of the kernel configuration"
    source_hash: str | None = None
    kernels: tuple[str, ...] = ()
    "of one launch, as the profiler names them, in order of first launch"
    kernel_launches: tuple[int, ...] = ()
    "launches of each; empty: one each"
    kernel_ms: tuple[float, ...] = ()
    "time of all launches of each, from the median launch"
    environment: int | None = None
    "index into Run.environments"
    replicate: int = 0
    status: Status
    reason: str | None = None
    notes: tuple[str, ...] = ()
    time: Time | None = None
    timers: Mapping[str, Time] = field(default_factory=dict)
    "with --timer all, or several: the same launch by each timer"
    yardsticks: Mapping[str, Yardstick] = field(default_factory=dict)
    "matmul and copy, the same for all records of a group that were measured together"
    power_w: PowerSeries | None = None
    phases: Mapping[str, Time] = field(default_factory=dict)
    memory: Memory | None = None
    work: Work | None = None
    rate: Rate | None = None
    ceilings: Mapping[str, float | None] = field(default_factory=dict)
    errors: Mapping[str, Error] = field(default_factory=dict)
    counters: Mapping[str, float | None] = field(default_factory=dict)
    speedup: Speedup | None = None
    repro: str | None = None
    "command that repeats the measurement of this row"

    def __post_init__(self) -> None:
        check_case(self.case)
        Spelled.__post_init__(self)
        who = f"record {self.case_id} {self.backend}: status={self.status.value}"
        timed = self.time or self.phases or self.speedup or self.yardsticks
        if self.status is not Status.PASSED and timed:
            raise RunFileError(f"{who} has a time; only passed may")
        if self.status is not Status.PASSED and not self.reason:
            raise RunFileError(f"{who} has no reason; every outcome but passed has one")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(Spelled):
    """How to measure: everything in a request other than cases and backends."""

    device: str = "auto"
    "auto, cpu, cuda, cuda:N"
    timer: str = "auto"
    "auto, all, or a timer's name"
    l2: str = "auto"
    "auto (cold on a GPU, warm on a CPU), cold, warm"
    regime: str = "burst"
    "burst or sustained"
    warmup: int | None = None
    iterations: int | None = None
    "warmup and iterations fix the counts; without them `rel_ci` and `max_seconds` stop"
    rel_ci: float = 0.01
    max_seconds: float = 2.0
    "sampling time of a group"
    timeout: float = 120.0
    "seconds without progress of the worker"
    input: str = "normal"
    seed: int = 0
    replicates: int = 1
    check: bool = True
    measure: bool = True
    "False: correctness only"
    lock_clocks: str | None = None
    "SM[,MEM] in MHz"
    baseline: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedGroup(Spelled):
    """All backends of one case, measured together."""

    group: str
    workload: str
    case: Mapping[str, Any]
    case_id: str
    backends: tuple[str, ...]
    replicate: int = 0

    def __post_init__(self) -> None:
        check_case(self.case)
        Spelled.__post_init__(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard(Spelled):
    """The part of a plan that a run measures."""

    index: int
    "from 1"
    count: int
    groups: tuple[str, ...] = field(repr=False)
    "names of all groups of the whole plan, in its order"


@dataclass(frozen=True, kw_only=True, slots=True)
class Run(Spelled):
    """One execution of a suite."""

    id: str
    suite: str
    command: str
    started: str
    "ISO 8601, UTC"
    plan: tuple[PlannedGroup, ...] = field(default=(), repr=False)
    settings: Settings = field(default_factory=Settings)
    layout: str | None = None
    "layout of the older script that the suite replaces; --layout prints it"
    backend_files: tuple[str, ...] = ()
    "names (not paths) of the --backends files"
    shard: Shard | None = None
    "which part of a larger plan `plan` is; None if it is the whole"
    environments: tuple[Environment, ...] = field(default=(), repr=False)
    records: tuple[Record, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        check_id(self.id)
        Spelled.__post_init__(self)


def to_dict(value: Any) -> Any:
    """Return a dataclass of this module as plain JSON data; non-finite numbers become null."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if (names := _field_names(value.__class__)) is not None:
        return {name: to_dict(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): to_dict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_dict(item) for item in value]
    return value.value if isinstance(value, StrEnum) else value


_ATOMS = frozenset({int, str, bool, type(None)})


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def from_dict(cls: type[T], data: Any, where: str = "run") -> T:
    """Return a dataclass of this module built from JSON data, every field checked.

    Raises:
        RunFileError: a field is missing, unknown or of the wrong type; the message names it.
    """
    if not isinstance(data, Mapping):
        raise RunFileError(f"{where}: {shown(data)} is not an object")
    hints = _hints(cls)  # type: ignore[arg-type]  # T is a dataclass, which no bound can say
    if strange := sorted(set(data) - set(hints)):
        raise RunFileError(f"{where}.{strange[0]}: unknown field; one of {', '.join(hints)}")
    plain = _plain_fields(cls)  # type: ignore[arg-type]  # T is a dataclass, which no bound can say
    values = {
        name: item if type(item) in plain[name] else _decode(hints[name], item, f"{where}.{name}")
        for name, item in data.items()
    }
    if missing := [name for name in _needed(cls) if name not in values]:  # type: ignore[arg-type]  # T is a dataclass, which no bound can say
        raise RunFileError(f"{where}.{missing[0]}: missing field")
    return cls(**values)


_hints = cache(typing.get_type_hints)


@cache
def _plain_fields(cls: type) -> dict[str, frozenset[type]]:
    return {name: _plain(hint) for name, hint in _hints(cls).items()}


@cache
def _needed(cls: type) -> tuple[str, ...]:
    return tuple(
        f.name
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    )


@cache
def _plain(hint: Any) -> frozenset[type]:
    """Return the types of JSON scalars that `hint` accepts unchanged; empty for types that need decoding."""
    alternatives = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return frozenset(alternatives) if set(alternatives) <= {float, int, str, bool, type(None)} else frozenset()


_parts: Any = cache(lambda hint: (typing.get_origin(hint), typing.get_args(hint)))


def _decode(hint: Any, data: Any, where: str) -> Any:
    origin, args = _parts(hint)
    if hint is Any:
        check_depth(data, where)
        return data
    if origin is typing.Union or origin is types.UnionType:
        if data is None and type(None) in args:
            return None
        return _decode(next(a for a in args if a is not type(None)), data, where)
    if origin is tuple and isinstance(data, list | tuple):
        if set(map(type, data)) <= _plain(args[0]):  # hot path: raw samples
            return tuple(data)
        return tuple(_decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if origin is not None and hasattr(origin, "__mro__") and issubclass(origin, Mapping) and isinstance(data, Mapping):
        return {key: _decode(args[1], item, f"{where}.{key}") for key, item in data.items()}
    if origin is Literal or (isinstance(hint, type) and issubclass(hint, StrEnum)):
        choices = args if origin is Literal else tuple(hint)
        if data in choices:
            return choices[choices.index(data)]
        raise RunFileError(f"{where}: {shown(data)} is not known; one of {', '.join(map(str, choices))}")
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_dict(hint, data, where)
    if hint is float and isinstance(data, int | float) and not isinstance(data, bool):
        return float(data)
    if isinstance(hint, type) and type(data) is hint:
        return data
    raise RunFileError(f"{where}: {shown(data)} is not a {getattr(origin or hint, '__name__', str(hint))}")

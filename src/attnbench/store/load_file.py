"""The result of a load test: one JSON document, read as data with every field checked (docs/serving.md, "Load").

A run file has samples of controlled launches; this file has requests that arrive on their own schedule.
Series are stored as measured, and every statistic is recomputed on reading.  Times are milliseconds, rates
requests per second, unless a name says otherwise; unknown values are null.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnbench import record
from attnbench.errors import RunFileError, refusal, unreadable
from attnbench.record import Environment
from attnbench.stats.summary import is_supported, percentile
from attnbench.store.files import write_bytes
from attnbench.store.parsing import parse
from attnbench.text import RUN_ID, Spelled, shown

SCHEMA = 1
FIELDS = {"schema", "load", "points"}
ACCEPTED = "a file written by attnbench load"
LARGEST = 1e15
MOST_SERIES = 100_000_000
ENDING = ".load.json"
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
RANDOM = "random"
"Weights of a model drawn from a seed."
DIGITS = 3
"Decimal digits of milliseconds in a series: a microsecond."


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread(Spelled):
    """Statistics of a series; a percentile is null if the series is too short for it."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    p999: float | None
    max: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput(Spelled):
    """Requests answered within the time limit."""

    slo_ms: float
    share: float
    "of all requests that were issued; a refused one is not in time"
    rate: float
    "of those, a second of `whole_s`"


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskAuc(Spelled):
    """How well a task's scores rank the candidates with known labels, over all answered requests."""

    task: str
    auc: float | None
    "area under the ROC curve, equal scores count half; null if all candidates have the label, or none"
    positive: int
    negative: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Point(Spelled):
    """One load at one rate.  issued = answered + the sum of refused."""

    scenario: str
    "server, offline, gaps or replay"
    generator: str
    asked_rate: float | None
    "null if all requests come at once"
    offered_rate: float | None
    "requests issued, over the time from the first scheduled arrival to the last"
    achieved_rate: float | None
    "answered requests, over `whole_s`"
    load_s: float
    "from the start of the schedule to its last arrival"
    whole_s: float
    "to the last answer, or to the last arrival where that is later"
    issued: int
    answered: int
    refused: Mapping[str, int] = field(default_factory=dict)
    "number of requests by reason"
    backlog: int = 0
    "requests without an answer when the last request was issued"
    splits: int = 0
    "batches that were refused as a whole and served in halves"
    interrupted: bool = False
    latency_ms: tuple[float, ...] = field(default=(), repr=False)
    "of each answered request, from its scheduled time to its answer"
    at_s: tuple[float, ...] = field(default=(), repr=False)
    "its scheduled time"
    queue_ms: tuple[float, ...] = field(default=(), repr=False)
    "from its scheduled time to the launch of its batch"
    late_ms: tuple[float, ...] = field(default=(), repr=False)
    "delay of the generator in issuing each request, answered or not"
    batch_size: tuple[int, ...] = field(default=(), repr=False)
    host_ms: tuple[float, ...] = field(default=(), repr=False)
    "of each batch: the launch on the host"
    device_ms: tuple[float, ...] = field(default=(), repr=False)
    "of each batch on the GPU; empty on a CPU"
    latency: Spread | None = None
    queue: Spread | None = None
    service: Spread | None = None
    "from the launch of a request's batch to its answer"
    late: Spread | None = None
    host: Spread | None = None
    device: Spread | None = None
    goodput: tuple[Goodput, ...] = ()
    cache: Mapping[str, int] = field(default_factory=dict)
    "tokens of history: hit + host_hit + missed = tokens; empty without a cache"
    auc: tuple[TaskAuc, ...] = ()
    "of each task, if the candidates come from a log with known outcomes; scores are not stored"
    loadgen: Mapping[str, Any] = field(default_factory=dict)
    "LoadGen's own summary"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Highest(Spelled):
    """The highest rate at which 99 % of the requests are in time."""

    slo_ms: float
    rate: float | None
    "null if no rate tried reaches it"
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadRun(Spelled):
    """One execution of `attnbench load`."""

    id: str
    workload: str
    model: str
    device: str
    command: str
    started: str
    settings: Mapping[str, Any]
    environment: Environment
    points: tuple[Point, ...] = ()
    highest: tuple[Highest, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the id, which is part of a file name."""
        if not RUN_ID.fullmatch(self.id):
            raise RunFileError(f"load.id={shown(self.id)} is not the id of a run; 4 to 16 of the digits 0-9 and a-f")
        Spelled.__post_init__(self)


def rate_text(rate: float) -> str:
    """Four digits of a rate, whole ones as they are: 1432.6 is 1433, and 20000 is 20000, not 2e+04."""
    return f"{float(f'{rate:.4g}'):.15g}"


def spread(values: Sequence[float]) -> Spread | None:
    """Return the statistics of a series; None for an empty one."""
    if not values:
        return None
    ordered = sorted(values)
    count = len(ordered)
    found = {
        name: percentile(ordered, share) if is_supported(share, count) else None for name, share in PERCENTILES.items()
    }
    return Spread(count=count, mean=math.fsum(ordered) / count, max=ordered[-1], **found)


def derived(point: Point, slos_ms: Sequence[float]) -> Point:
    """Return the point with every statistic computed from its series."""
    service = [whole - queue for whole, queue in zip(point.latency_ms, point.queue_ms, strict=True)]
    return dataclasses.replace(
        point,
        latency=spread(point.latency_ms),
        queue=spread(point.queue_ms),
        service=spread(service),
        late=spread(point.late_ms),
        host=spread(point.host_ms),
        device=spread(point.device_ms),
        goodput=tuple(_goodput(point, slo) for slo in slos_ms),
    )


def _goodput(point: Point, slo_ms: float) -> Goodput:
    good = sum(latency <= slo_ms for latency in point.latency_ms)
    return Goodput(
        slo_ms=slo_ms,
        share=good / point.issued if point.issued else 0.0,
        rate=good / point.whole_s if point.whole_s > 0 else 0.0,
    )


def dumps(run: LoadRun) -> str:
    """Return the text of the file: one point per line."""
    data = record.to_dict(run)
    points = [json.dumps(point, ensure_ascii=False, allow_nan=False) for point in data.pop("points")]
    head = json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1)
    return f'{{"schema": {SCHEMA},\n"load": {head},\n"points": [\n' + ",\n".join(points) + "\n]}\n"


def write(run: LoadRun, path: str | Path) -> Path:
    """Write the file atomically.

    Raises:
        UsageError: the path cannot be written.
    """
    write_bytes(path, dumps(run).encode())
    return Path(path)


def is_load(text: str) -> bool:
    """Return whether a text begins like such a file, written by `dumps` or any other JSON tool."""
    return re.match(r'\s*\{\s*"schema"\s*:\s*\d+\s*,\s*"load"\s*:', text) is not None


def read(path: str | Path) -> LoadRun:
    """Read a file.

    Raises:
        RunFileError: it is missing, truncated, of a newer schema, or not the result of a load.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise RunFileError(refusal("load file", "path", path, unreadable(error), ACCEPTED)) from None
    return loads(text, who=str(path))


def loads(text: str, who: str = "load file") -> LoadRun:
    """Return the result of a load from its text; errors name `who`.

    Raises:
        RunFileError: see `read`.
    """
    data = parse(text, who, ACCEPTED)
    try:
        if not isinstance(data, dict) or set(data) != FIELDS or not isinstance(data["load"], dict):
            raise RunFileError(f"fields={shown(data)} are not those of a load; {', '.join(sorted(FIELDS))}; {ACCEPTED}")
        if type(data["schema"]) is not int or not 1 <= data["schema"] <= SCHEMA:
            raise RunFileError(f"schema={shown(data['schema'])} is not known; 1 to {SCHEMA}; upgrade attnbench")
        found = record.from_dict(LoadRun, {**data["load"], "points": data["points"]}, "load")
        for number, point in enumerate(found.points):
            _check(point, f"points[{number}]")
        return dataclasses.replace(
            found, points=tuple(derived(point, [one.slo_ms for one in point.goodput]) for point in found.points)
        )
    except RunFileError as error:
        raise RunFileError(f"{who}: {error}") from None
    except (OverflowError, RecursionError) as error:
        raise RunFileError(refusal(who, "value", error, "cannot be held", ACCEPTED)) from None


def _check(point: Point, where: str) -> None:
    """Refuse counts that do not add up and series of inconsistent lengths."""
    if min(point.issued, point.answered, point.backlog, point.splits, *point.refused.values(), 0) < 0:
        raise RunFileError(f"{where}: a count is below 0; counts of requests")
    if point.issued != point.answered + sum(point.refused.values()):
        raise RunFileError(
            f"{where}.issued={point.issued} is not answered + refused; {point.answered + sum(point.refused.values())}"
        )
    for one in point.auc:
        if min(one.positive, one.negative) < 0 or not 0 <= (one.auc or 0.0) <= 1:
            raise RunFileError(f"{where}.auc of {shown(one.task)} cannot be; counts, and an area from 0 to 1")
    for name in ("latency_ms", "at_s", "queue_ms"):
        if len(getattr(point, name)) != point.answered:
            raise RunFileError(
                f"{where}.{name} has {len(getattr(point, name))} values; one of each answered request, {point.answered}"
            )
    for name in ("latency_ms", "at_s", "queue_ms", "late_ms", "host_ms", "device_ms"):
        for number, value in enumerate(getattr(point, name)):
            if not -LARGEST <= value <= LARGEST:
                raise RunFileError(f"{where}.{name}[{number}]={value} cannot be; a finite number")
    for value in (point.load_s, point.whole_s, point.asked_rate, point.offered_rate, point.achieved_rate):
        if value is not None and not 0 <= value <= LARGEST:
            raise RunFileError(f"{where}: {value} is no time or rate; a number from 0")


def default_path(run: LoadRun, folder: str | Path) -> Path:
    """Return `<started>-<model>-<id>.load.json`; the suffix distinguishes it from a run file."""
    started = re.sub(r"[^0-9TZ]", "", run.started)[:32]
    model = re.sub(r"[^A-Za-z0-9._-]+", "-", run.model).strip("-.")[:40] or "model"
    return Path(folder) / f"{started}-{model}-{run.id}{ENDING}"
